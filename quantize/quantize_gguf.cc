#include "quantize/quantize_gguf.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/types/text.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_writer.h"
#include "model/load_spec.h"
#include "quantize/ggml_rows.h"
#include "worker/compute/host/thread_pool.h"

namespace flotilla::quantize {
namespace {

using model::GgmlType;
using model::GgufFile;
using model::GgufWriter;
using model::Tensor;

constexpr char kFileType[] = "general.file_type";
constexpr char kVersion[] = "general.quantization_version";
constexpr uint32_t kQuantizationVersion = 2;  // GGML_QNT_VERSION
// Rows are encoded in pieces of about so many weights.
constexpr uint64_t kPieceWeights = 4 << 20;

bool IsFloat(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

// Squares of weights and of what changed in them.
struct Squares {
  double weights = 0, changes = 0;
};

class GgufQuantizer {
 public:
  GgufQuantizer(const GgufJob& job, const GgufFile& file, std::string_view architecture,
                const WeightsDone& done)
      : job_(job), file_(file), architecture_(architecture), done_(done), pool_(job.threads) {}

  absl::StatusOr<GgufReport> Run() {
    absl::Status status = Plan();
    if (!status.ok()) return status;
    model::GgufMetadata metadata(file_);
    metadata.SetUint32(kFileType, job_.target.file_type);
    metadata.SetUint32(kVersion, kQuantizationVersion);
    auto writer = GgufWriter::Create(job_.to, metadata, tensors_);
    if (!writer.ok()) return writer.status();
    for (size_t i = 0; status.ok() && i < tensors_.size(); ++i) {
      const Tensor& tensor = file_.tensors()[i];
      status = tensor.type == tensors_[i].type ? (*writer)->Write(tensor.data)
                                               : Encode(tensor, report_.tensors[i], **writer);
      file_.ReleasePages();
    }
    if (!status.ok()) return status;
    const auto bytes = (*writer)->Finish();
    if (!bytes.ok()) return bytes.status();
    report_.bytes = *bytes;
    return std::move(report_);
  }

 private:
  // Gives each tensor its type.
  absl::Status Plan() {
    const bool has_output = file_.FindTensor("output.weight") != nullptr;
    const std::string_view output = has_output ? "output.weight" : "token_embd.weight";
    for (const Tensor& tensor : file_.tensors()) {
      GgmlType type = tensor.type;
      const bool quantized = IsQuantized(tensor);
      if (quantized && !IsFloat(type)) {
        return InvalidArgument(job_.from, ": tensor ", tensor.name, " is ",
                               model::GgmlTypeName(type),
                               ": the model is quantised already. --type needs the model in F32, "
                               "F16 or BF16");
      }
      if (quantized) {
        type = TypeOf(tensor, job_.target.type, tensor.name == output, architecture_);
        all_ += tensor.elements();
      }
      tensors_.push_back({.name = std::string(tensor.name),
                          .dims = {tensor.dims, tensor.dims + tensor.rank},
                          .type = type});
      report_.tensors.push_back({.name = std::string(tensor.name),
                                 .before = tensor.type,
                                 .after = type,
                                 .weights = tensor.elements(),
                                 .bytes = tensors_.back().bytes(),
                                 .quantized = quantized});
    }
    if (all_ > 0) return absl::OkStatus();
    return InvalidArgument(job_.from, " has no matrix that --type could quantise");
  }

  // Writes the tensor in its new type, some rows at a time.
  absl::Status Encode(const Tensor& tensor, GgufTensorReport& report, GgufWriter& writer) {
    const uint64_t rows = tensor.elements() / tensor.dims[0];
    const uint64_t piece = std::max<uint64_t>(1, kPieceWeights / tensor.dims[0]);
    const uint64_t row_bytes = report.bytes / rows;
    std::vector<std::byte> out;
    Squares total;
    for (uint64_t begin = 0; begin < rows; begin += piece) {
      const uint64_t count = std::min(piece, rows - begin);
      out.resize(count * row_bytes);
      std::vector<Squares> squares(count);
      std::vector<absl::Status> statuses(count);
      pool_.ParallelItems(static_cast<int64_t>(count), [&](int64_t item) {
        const auto i = static_cast<size_t>(item);
        statuses[i] = EncodeOne(tensor, begin + i, report.after,
                                std::span(out).subspan(i * row_bytes, row_bytes), squares[i]);
      });
      for (size_t i = 0; i < count; ++i) {
        if (!statuses[i].ok()) {
          return InvalidArgument(job_.from, ": tensor ", tensor.name, ", row ", begin + i, ": ",
                                 statuses[i].message());
        }
        // In the order of the rows, whatever thread they were on.
        total.weights += squares[i].weights;
        total.changes += squares[i].changes;
      }
      const absl::Status status = writer.Write(out);
      if (!status.ok()) return status;
      ran_ += count * tensor.dims[0];
      if (done_) done_(ran_, all_);
    }
    report.error = total.weights > 0 ? total.changes / total.weights : 0;
    return absl::OkStatus();
  }

  static absl::Status EncodeOne(const Tensor& tensor, uint64_t row, GgmlType type,
                                std::span<std::byte> out, Squares& squares) {
    std::vector<float> weights(tensor.dims[0]), decoded(tensor.dims[0]);
    absl::Status status = model::DecodeRow(tensor, static_cast<int64_t>(row), weights);
    if (status.ok()) status = EncodeRow(type, weights, out);
    if (status.ok()) status = model::DequantizeRow(type, out, decoded);
    if (!status.ok()) return status;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double weight = weights[i], change = decoded[i] - weight;
      squares.weights += weight * weight;
      squares.changes += change * change;
    }
    return absl::OkStatus();
  }

  const GgufJob& job_;
  const GgufFile& file_;
  const std::string_view architecture_;
  const WeightsDone& done_;
  worker::ThreadPool pool_;
  std::vector<GgufWriter::Tensor> tensors_;
  uint64_t all_ = 0, ran_ = 0;  // weights of the matrices
  GgufReport report_;
};

}  // namespace

double GgufReport::file_bits() const {
  uint64_t weights = 0;
  for (const GgufTensorReport& tensor : tensors) weights += tensor.weights;
  return 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

double GgufReport::matrix_bits() const {
  uint64_t weights = 0, stored = 0;
  for (const GgufTensorReport& tensor : tensors) {
    if (!tensor.quantized) continue;
    weights += tensor.weights;
    stored += tensor.bytes;
  }
  return 8 * static_cast<double>(stored) / static_cast<double>(weights);
}

absl::StatusOr<GgufReport> QuantizeGguf(const GgufJob& job, const model::Checkpoint& file,
                                        const WeightsDone& done) {
  if (file.naming() != model::Naming::kLlamaCpp) {
    return InvalidArgument(job.from,
                           " is a Hugging Face folder. --type makes a GGUF file of a "
                           "GGUF file; without it the folder becomes another folder");
  }
  const auto spec = model::LoadSpec(file);
  if (!spec.ok()) return spec.status();
  const auto architecture = file.configuration().architecture();
  if (!architecture.ok()) return architecture.status();
  const auto gguf = GgufFile::Open(job.from);
  if (!gguf.ok()) return gguf.status();
  if (gguf->GetUintOr("split.count", 1).value_or(1) > 1) {
    return Unimplemented(job.from,
                         " is one of several parts. Join them first, for example by "
                         "llama-gguf-split --merge");
  }
  return GgufQuantizer(job, *gguf, *architecture, done).Run();
}

std::string ReportText(const GgufJob& job, const GgufReport& report) {
  struct Count {
    uint64_t tensors = 0, weights = 0, bytes = 0;
  };
  std::map<std::string, Count> counts;
  uint64_t matrices = 0;
  for (const GgufTensorReport& tensor : report.tensors) {
    Count& count = counts[std::string(model::GgmlTypeName(tensor.after))];
    ++count.tensors;
    count.weights += tensor.weights;
    count.bytes += tensor.bytes;
    if (tensor.quantized) ++matrices;
  }
  std::string text = absl::StrFormat(
      "# Quantised with flotilla\n\n--type %s: %.3f bits per weight of the file, which has %d "
      "bytes, and %.3f of its %d matrices.\n\n| type | tensors | weights | bytes |\n|---|---|---|"
      "---|\n",
      std::string(job.target.name), report.file_bits(), report.bytes, report.matrix_bits(),
      matrices);
  for (const auto& [type, count] : counts) {
    absl::StrAppendFormat(&text, "| %s | %d | %d | %d |\n", type, count.tensors, count.weights,
                          count.bytes);
  }
  text += PerplexityText(report.perplexities);
  text +=
      "\nErrors are the squares of what changed in the weights of a matrix, over those of the "
      "weights. All\nother tensors are as they were.\n\n| matrix | before | after | error |\n"
      "|---|---|---|---|\n";
  for (const GgufTensorReport& tensor : report.tensors) {
    if (!tensor.quantized) continue;
    absl::StrAppendFormat(&text, "| `%s` | %s | %s | %.3g |\n", tensor.name,
                          std::string(model::GgmlTypeName(tensor.before)),
                          std::string(model::GgmlTypeName(tensor.after)), tensor.error);
  }
  return text;
}

}  // namespace flotilla::quantize

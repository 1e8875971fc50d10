#include "quantize/quantize_model.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/rt/unique_fd.h"
#include "common/rt/write_to_file.h"
#include "common/types/text.h"
#include "model/huggingface/json_file.h"
#include "model/huggingface/own_files.h"
#include "model/huggingface/safetensors_file.h"
#include "model/huggingface/safetensors_writer.h"
#include "model/load_spec.h"
#include "model/overlay_checkpoint.h"
#include "model/page_releaser.h"
#include "model/quantize_at_load.h"
#include "model/tensor_table.h"
#include "quantize/compressed_tensors.h"
#include "quantize/layer_runner.h"
#include "quantize/spqr_layout.h"
#include "worker/compute/host/thread_pool.h"

namespace flotilla::quantize {
namespace {

namespace fs = std::filesystem;
using model::GgmlType;
using model::Json;

constexpr char kConfig[] = "config.json";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kState[] = "quantize.state";  // of a job that is not done

std::string FileOf(uint32_t number, uint32_t files) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number, files);
}

// The file has its old content, or all of this one, also when the machine dies meanwhile.
absl::Status WriteFile(const std::string& path, std::span<const std::string_view> pieces) {
  const std::string unfinished = path + ".unfinished";
  const UniqueFd file(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  bool good = file.get() >= 0;
  for (const std::string_view piece : pieces) good = good && WriteToFile(file.get(), piece);
  good = good && fsync(file.get()) == 0 && std::rename(unfinished.c_str(), path.c_str()) == 0;
  if (good) return absl::OkStatus();
  return absl::UnavailableError(Cat("cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status WriteText(const std::string& path, std::string_view text) {
  return WriteFile(path, {&text, 1});
}

// Floats as the numbers of a type that the file has.
std::vector<std::byte> Encode(const std::vector<float>& values, GgmlType type) {
  std::vector<std::byte> bytes;
  const auto put = [&](auto number) {
    const auto* const at = reinterpret_cast<const std::byte*>(&number);
    bytes.insert(bytes.end(), at, at + sizeof number);
  };
  for (const float value : values) {
    if (type == GgmlType::kBF16) {
      put(BitsOf(value, ScaleType::kBf16));
    } else if (type == GgmlType::kF16) {
      put(BitsOf(value, ScaleType::kFp16));
    } else {
      put(value);
    }
  }
  return bytes;
}

// Whether the entries from `first` on are numbers.
bool AreNumbers(const Json& list, size_t first) {
  return std::all_of(list.begin() + static_cast<std::ptrdiff_t>(first), list.end(),
                     [](const Json& entry) { return entry.is_number(); });
}

// Files beside the weights that the new folder has, too.
bool IsCopied(const fs::path& file) {
  const std::string name = file.filename();
  constexpr std::string_view kText[] = {".json", ".txt", ".model", ".jinja", ".py", ".tiktoken"};
  const bool text =
      std::ranges::any_of(kText, [&](std::string_view e) { return name.ends_with(e); });
  return (text || name == "LICENSE") && name != kConfig && !name.ends_with(".index.json");
}

class Quantizer {
 public:
  Quantizer(const QuantizeJob& job, std::shared_ptr<const model::Checkpoint> file,
            model::ModelSpec spec, const Clock& clock)
      : job_(job),
        file_(std::move(file)),
        spec_(std::move(spec)),
        layers_(static_cast<uint32_t>(spec_.layers.size())),
        ops_(kernels::GetOps(job.isa)),
        pool_(job.threads),
        runner_(spec_, job.isa, job.threads, clock),
        fast_runner_(spec_, job.isa, job.threads, clock, worker::Recipe::kFast) {
    calibration_.texts = job.calibration;
    for (const Evaluation& evaluation : job.evaluations) {
      before_.push_back({.texts = evaluation.texts, .residuals = {}});
      report_.perplexities.push_back({.name = evaluation.name});
    }
    after_ = before_;
    if (!job.settings.int8_activations) return;
    after_.insert(after_.end(), before_.begin(), before_.end());
    for (const Evaluation& evaluation : job.evaluations) {
      report_.perplexities.push_back({.name = evaluation.name + ", --compute fast"});
    }
  }

  absl::StatusOr<QuantizeReport> Run(const LayerDone& done) {
    absl::Status status = Prepare();
    if (status.ok() && job_.resume) status = Resume();
    for (; status.ok() && next_ < layers_; ++next_) {
      status = RunLayer(next_);
      if (status.ok()) status = Save(next_ + 1);
      if (status.ok() && done) done(next_ + 1, layers_);
    }
    if (status.ok()) CountBits();
    if (status.ok()) status = WriteRest();
    if (!status.ok()) return status;
    return std::move(report_);
  }

 private:
  // Sorts the tensors by layer, and makes the folder.
  absl::Status Prepare() {
    const Settings& settings = job_.settings;
    if (settings.int8_activations &&
        (settings.bits != 8 || !settings.symmetric || settings.group != 0)) {
      return InvalidArgument(
          "matrices for activations of 8 bits have weights of 8 bits without zeros, and a scale "
          "for each row");
    }
    if (file_->naming() != model::Naming::kHuggingFace) {
      return InvalidArgument(job_.from, " is no Hugging Face folder. --type makes a GGUF file of ",
                             "a GGUF file");
    }
    if (std::ranges::any_of(file_->skipped_tensors(), &model::SkippedTensors::are_a_part)) {
      return Unimplemented("models with parts for other input than text cannot be quantised yet");
    }
    if (!file_->kv_scales().empty()) {
      return Unimplemented("the model has scales of K and V, which the result would not have");
    }
    const auto matrices = model::QuantizableMatrices(*file_, spec_);
    if (matrices.empty()) {
      return InvalidArgument(
          "no matrix can be quantised: the model is quantised already, or its "
          "rows are no multiples of 32");
    }
    const std::set<std::string> wanted(matrices.begin(), matrices.end());
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      std::set<std::string> all;
      for (const model::TensorRow& row : spec_.tensors) {
        if (!model::IsPerLayer(row) || !model::IsInLayer(row.role, spec_.layers[layer])) continue;
        for (std::string& name : NamesOf(row, layer)) all.insert(std::move(name));
      }
      for (const model::Tensor& tensor : file_->tensors()) {
        const std::string name(tensor.name);
        if (!all.contains(name) || of_layer_.contains(name)) continue;
        if (wanted.contains(name) && tensor.rank != 2) {
          return Unimplemented(name,
                               " has the matrices of all experts, and only a worker's "
                               "--quantize takes these yet");
        }
        of_layer_[name] = layer;
        (wanted.contains(name) ? quantized_ : kept_)[layer].push_back(name);
      }
    }
    absl::Status status = SetGroup();
    if (status.ok()) status = CheckFiles();
    if (!status.ok()) return status;
    for (const model::Tensor& tensor : file_->tensors()) {
      if (!of_layer_.contains(std::string(tensor.name))) rest_.emplace_back(tensor.name);
      // Linear layers by the names that transformers gives them.
      if (tensor.rank == 2 && tensor.name.ends_with(".weight") &&
          !(wanted.contains(std::string(tensor.name)))) {
        ignored_.emplace_back(tensor.name.substr(0, tensor.name.size() - 7));
      }
    }
    // The head's name in transformers, which a file without a head, or an old one, does not have.
    if (std::ranges::find(ignored_, "lm_head") == ignored_.end()) ignored_.push_back("lm_head");
    std::error_code error;
    if (fs::equivalent(job_.from, job_.to, error)) {
      return InvalidArgument(job_.to, " is the folder of the model itself");
    }
    if (fs::exists(PathOf(kConfig), error)) {
      return absl::AlreadyExistsError(Cat(job_.to, " has a model"));
    }
    if (fs::exists(PathOf(kState), error) && !job_.resume) {
      return absl::AlreadyExistsError(
          Cat(job_.to, " has what an earlier run has begun: --resume goes on with it"));
    }
    fs::create_directories(job_.to, error);
    if (error) return absl::UnavailableError(Cat("cannot create ", job_.to, ": ", error.message()));
    overlay_ = std::make_unique<model::OverlayCheckpoint>(file_, file_->format(), "quantize");
    return LayerQuantizer(*overlay_, spec_, job_.settings, ops_, parallel()).Check();
  }

  // Groups are whole: compressed-tensors does not read a shorter one at the end of a row.
  absl::Status SetGroup() {
    int64_t& group = job_.settings.group;
    for (const auto& [layer, names] : quantized_) {
      for (const std::string& name : names) {
        const auto inputs = static_cast<int64_t>(file_->FindTensor(name)->dims[0]);
        while (job_.halve_group && group > 32 && inputs % group != 0) group /= 2;
        if (group == 0 || inputs % group == 0) continue;
        return InvalidArgument("tensor ", name, ": its rows of ", inputs, " are no multiples of ",
                               group, ", the size of a group");
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::string> NamesOf(const model::TensorRow& row, uint32_t layer) const {
    std::vector<std::string> names;
    const auto& moe = spec_.layers[layer].moe;
    const uint32_t experts =
        model::IsPerExpert(row.role) && row.name.find('#') != std::string::npos && moe.has_value()
            ? moe->experts
            : 1;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      names.push_back(model::NameInFile(row, layer, expert));
    }
    return names;
  }

  absl::Status RunLayer(uint32_t layer) {
    std::map<std::string, std::unique_ptr<Importance>> importances;
    if (job_.settings.calibrates()) {
      const InputObserver observer = [&](const std::string& name, const float* x, int64_t rows,
                                         int64_t stride) {
        std::unique_ptr<Importance>& importance = importances[name];
        if (importance == nullptr) {
          importance = std::make_unique<Importance>(
              static_cast<int64_t>(file_->FindTensor(name)->dims[0]), ops_);
        }
        return importance->Add(x, rows, stride, parallel());
      };
      absl::Status status = runner_.Run(*overlay_, layer, calibration_, &observer, /*keep=*/false);
      if (!status.ok()) return status;
    }
    const LayerQuantizer quantizer(*overlay_, spec_, job_.settings, ops_, parallel());
    const auto made = quantizer.Quantize(layer, quantized_[layer], importances);
    if (!made.ok()) return made.status();
    importances.clear();
    CompressedLayers packed;
    for (const std::string& name : quantized_[layer]) {
      const auto stem =
          std::string_view(name).substr(0, name.size() - std::string_view(".weight").size());
      if (job_.settings.method == Method::kSpqr) {
        AddSpqr(stem, made->sparse.at(name), packed);
      } else if (job_.settings.int8_activations) {
        packed.AddBytes(stem, made->matrices.at(name));
      } else {
        packed.Add(stem, made->matrices.at(name));
      }
    }
    report_.matrices.insert(report_.matrices.end(), made->reports.begin(), made->reports.end());
    std::map<std::string, std::vector<std::byte>> changed;
    for (const ChangedTensor& each : made->changed) {
      changed[each.name] = Encode(each.values, file_->FindTensor(each.name)->type);
    }
    absl::Status status = WriteLayer(layer, packed, changed);
    if (!status.ok()) return status;
    return Advance(layer, packed, changed);
  }

  absl::Status WriteLayer(uint32_t layer, const CompressedLayers& packed,
                          const std::map<std::string, std::vector<std::byte>>& changed) const {
    std::vector<model::SafetensorsEntry> entries(packed.entries().begin(), packed.entries().end());
    const auto kept = kept_.find(layer);
    for (size_t i = 0; kept != kept_.end() && i < kept->second.size(); ++i) {
      entries.push_back(model::EntryOf(*file_->FindTensor(kept->second[i])));
      const auto other = changed.find(kept->second[i]);
      if (other != changed.end()) entries.back().data = other->second;
    }
    return model::WriteSafetensors(PathOf(FileOf(layer + 1, layers_ + 1)), entries);
  }

  // Runs the quantised layer, as it has been written, and what is evaluated.
  absl::Status Advance(uint32_t layer, const CompressedLayers& packed,
                       const std::map<std::string, std::vector<std::byte>>& changed) {
    const auto read = ReadCompressed(packed, Config());
    if (!read.ok()) return read.status();
    absl::Status status;
    std::vector<TextScores> reference(before_.size());
    for (size_t i = 0; status.ok() && i < before_.size(); ++i) {
      auto scores = Evaluate(layer, before_[i], nullptr, runner_);
      status = scores.status();
      if (!status.ok()) break;
      reference[i] = *std::move(scores);
      for (size_t each = i; each < after_.size(); each += before_.size()) {
        report_.perplexities[each].before = reference[i].perplexity;
      }
    }
    std::vector<model::Tensor> old;
    const auto put = [&](const model::Tensor& tensor) {
      old.push_back(*overlay_->FindTensor(tensor.name));
      overlay_->Put(tensor);
    };
    for (const model::Tensor& tensor : (*read)->tensors) put(tensor);
    for (const auto& [name, bytes] : changed) {
      model::Tensor tensor = *file_->FindTensor(name);
      tensor.data = bytes;
      put(tensor);
    }
    // Nobody wants what calibration is behind the last layer.
    if (status.ok() && job_.settings.calibrates() && layer + 1 < layers_) {
      status = runner_.Run(*overlay_, layer, calibration_, nullptr, /*keep=*/true);
    }
    for (size_t i = 0; status.ok() && i < after_.size(); ++i) {
      const TextScores& before = reference[i % before_.size()];
      const auto scores =
          Evaluate(layer, after_[i], &before.best, i < before_.size() ? runner_ : fast_runner_);
      status = scores.status();
      if (!status.ok()) break;
      report_.perplexities[i].after = scores->perplexity;
      report_.perplexities[i].top5_error = scores->top5_error;
      report_.perplexities[i].uncertainty = UncertaintyOf(before.next, scores->next);
    }
    for (const model::Tensor& tensor : old) overlay_->Put(tensor);
    file_->ReleasePages();
    return status;
  }

  // Runs the layer as it is now. The last layer gives scores.
  absl::StatusOr<TextScores> Evaluate(uint32_t layer, Stream& stream,
                                      const std::vector<BestTokens>* reference,
                                      LayerRunner& runner) {
    if (layer + 1 == layers_) return runner.Score(*overlay_, stream, reference);
    const absl::Status status = runner.Run(*overlay_, layer, stream, nullptr, /*keep=*/true);
    if (!status.ok()) return status;
    return TextScores();
  }

  void CountBits() {
    double bits = 0, weights = 0;
    for (const MatrixReport& matrix : report_.matrices) {
      const auto count = static_cast<double>(matrix.rows) * static_cast<double>(matrix.inputs);
      bits += matrix.bits * count;
      weights += count;
    }
    report_.bits = bits / weights;
  }

  // What belongs to no layer, and then what makes the folder a model.
  absl::Status WriteRest() {
    const std::string last = FileOf(layers_ + 1, layers_ + 1);
    std::vector<model::SafetensorsEntry> entries;
    for (const std::string& name : rest_) {
      entries.push_back(model::EntryOf(*file_->FindTensor(name)));
    }
    absl::Status status = model::WriteSafetensors(PathOf(last), entries);
    if (status.ok()) status = WriteIndex();
    if (status.ok()) status = CopyFiles();
    if (status.ok()) status = WriteText(PathOf("quantization.md"), ReportText(job_, report_));
    if (status.ok()) status = WriteConfig();
    if (!status.ok()) return status;
    std::error_code error;
    fs::remove(PathOf(kState), error);
    return absl::OkStatus();
  }

  absl::Status WriteIndex() {
    nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", {}}};
    uint64_t total = 0;
    for (uint32_t number = 1; number <= layers_ + 1; ++number) {
      const std::string name = FileOf(number, layers_ + 1);
      const auto file = model::SafetensorsFile::Open(PathOf(name));
      if (!file.ok()) return file.status();
      for (const model::Tensor& tensor : file->tensors()) {
        index["weight_map"][std::string(tensor.name)] = name;
        total += tensor.data.size();
        if (IsOfSpqr(tensor.name)) sizes_[std::string(tensor.name)] = tensor.elements();
      }
    }
    index["metadata"]["total_size"] = total;
    return WriteText(PathOf(kIndex), index.dump(2) + "\n");
  }

  // Who publishes the folder would publish what a link leads to.
  absl::Status CheckFiles() const {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(job_.from, error)) {
      if (!entry.is_regular_file() || !IsCopied(entry.path())) continue;
      if (!model::IsOwnFile(job_.from, job_.from, entry.path(), error)) {
        return InvalidArgument(entry.path().string(), " is a link out of its folder");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CopyFiles() const {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(job_.from, error)) {
      if (!entry.is_regular_file() || !IsCopied(entry.path())) continue;
      fs::copy_file(entry.path(), PathOf(entry.path().filename().string()),
                    fs::copy_options::overwrite_existing, error);
      if (error) break;
    }
    if (!error) return absl::OkStatus();
    return absl::UnavailableError(
        Cat("cannot copy the files of ", job_.from, ": ", error.message()));
  }

  absl::Status WriteConfig() const {
    const std::string path = job_.from + "/" + kConfig;
    const auto text = model::ReadTextFile(path, 1 << 20);
    if (!text.ok()) return text.status();
    auto config = nlohmann::ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return InvalidArgument(path, " is no JSON object");
    config["quantization_config"] = nlohmann::ordered_json::parse(Config().dump());
    return WriteText(PathOf(kConfig), config.dump(2) + "\n");
  }

  Json Config() const {
    const Settings& settings = job_.settings;
    if (settings.method == Method::kSpqr) return SpqrConfig(sizes_, ignored_);
    return CompressedConfig({.bits = settings.bits, .symmetric = settings.symmetric},
                            settings.group, ignored_, settings.int8_activations);
  }

  // Two models of one family differ in their weights alone.
  uint64_t WeightsHash() {
    if (weights_hash_.has_value()) return *weights_hash_;
    uint64_t hash = 0;
    model::PageReleaser pages(*file_);
    for (const model::Tensor& tensor : file_->tensors()) {
      const auto add = [&](std::span<const std::byte> data) {
        hash = XXH3_64bits_withSeed(data.data(), data.size(), hash);
      };
      if (tensor.composite == nullptr) add(tensor.data);
      if (tensor.composite != nullptr) std::ranges::for_each(tensor.composite->parts(), add);
      pages.Read(tensor.bytes());
    }
    return *(weights_hash_ = hash);
  }

  // What tells this job from others.
  uint64_t JobHash() {
    const Settings& settings = job_.settings;
    std::string all =
        Cat(file_->MetadataHash(), "|", WeightsHash(), "|", static_cast<int>(settings.method), "|",
            settings.bits, "|", settings.symmetric, "|", settings.group, "|", settings.damp, "|",
            settings.by_importance);
    if (settings.int8_activations) all += Cat("|int8|", settings.alpha);
    if (settings.method == Method::kSpqr) all += Cat("|", settings.outliers);
    const auto add = [&](const std::vector<std::vector<TokenId>>& texts) {
      all += "|";
      for (const auto& text : texts) {
        all += Cat("|", XXH3_64bits(text.data(), text.size() * sizeof text[0]));
      }
    };
    add(job_.calibration);
    for (const Evaluation& evaluation : job_.evaluations) add(evaluation.texts);
    return XXH3_64bits(all.data(), all.size());
  }

  // The state of a job: its hash, the layers that are done, the reports, and residuals.
  absl::Status Save(uint32_t done) {
    Json state = {{"job", JobHash()},
                  {"done", done},
                  {"perplexities", Json::array()},
                  {"matrices", Json::array()}};
    for (const PerplexityReport& each : report_.perplexities) {
      state["perplexities"].push_back({each.before, each.after, each.top5_error, each.uncertainty});
    }
    for (const MatrixReport& matrix : report_.matrices) {
      state["matrices"].push_back({matrix.name, matrix.rows, matrix.inputs, matrix.bits,
                                   matrix.error, matrix.nearest_error});
    }
    const std::string text = state.dump() + "\n";
    std::vector<std::string_view> pieces = {text};
    const auto add = [&](const Stream& stream) {
      pieces.emplace_back(reinterpret_cast<const char*>(stream.residuals.data()),
                          stream.residuals.size() * sizeof(float));
    };
    add(calibration_);
    for (const Stream& stream : before_) add(stream);
    for (const Stream& stream : after_) add(stream);
    return WriteFile(PathOf(kState), pieces);
  }

  absl::Status Resume() {
    std::ifstream file(PathOf(kState), std::ios::binary);
    if (!file) return absl::OkStatus();  // nothing has begun
    std::string line;
    std::getline(file, line);
    const Json state = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto other = [&] {
      return absl::AlreadyExistsError(Cat(job_.to, " has what another job has begun"));
    };
    const auto number = [&](const char* key) {
      const auto found = state.find(key);
      return found != state.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
    };
    if (!state.is_object() || number("job") != JobHash()) return other();
    next_ = static_cast<uint32_t>(std::min<uint64_t>(number("done"), layers_));
    const auto list = [&](const char* key) {
      const auto found = state.find(key);
      return found != state.end() && found->is_array() ? *found : Json::array();
    };
    const Json perplexities = list("perplexities");
    if (perplexities.size() != report_.perplexities.size()) return other();
    for (size_t i = 0; i < perplexities.size(); ++i) {
      const Json& numbers = perplexities[i];
      // Those of an older version have three.
      if (!numbers.is_array() || numbers.size() < 3 || !AreNumbers(numbers, 0)) return other();
      report_.perplexities[i].before = numbers[0];
      report_.perplexities[i].after = numbers[1];
      report_.perplexities[i].top5_error = numbers[2];
      if (numbers.size() > 3) report_.perplexities[i].uncertainty = numbers[3];
    }
    const Json matrices = list("matrices");
    for (const Json& row : matrices) {
      if (!row.is_array() || row.size() != 6 || !row[0].is_string() || !AreNumbers(row, 1)) {
        return other();
      }
      report_.matrices.push_back({.name = row[0],
                                  .rows = row[1],
                                  .inputs = row[2],
                                  .bits = row[3],
                                  .error = row[4],
                                  .nearest_error = row[5]});
    }
    const auto read = [&](Stream& stream) {
      stream.residuals.resize(static_cast<size_t>(stream.tokens() * spec_.hidden));
      file.read(reinterpret_cast<char*>(stream.residuals.data()),
                static_cast<std::streamsize>(stream.residuals.size() * sizeof(float)));
    };
    if (job_.settings.calibrates()) read(calibration_);
    for (Stream& stream : before_) read(stream);
    for (Stream& stream : after_) read(stream);
    if (file.bad() || !file) return other();
    return absl::OkStatus();
  }

  std::string PathOf(const std::string& name) const { return job_.to + "/" + name; }
  ParallelItems parallel() { return parallel_; }

  QuantizeJob job_;
  const std::shared_ptr<const model::Checkpoint> file_;
  std::optional<uint64_t> weights_hash_;
  const model::ModelSpec spec_;
  const uint32_t layers_;
  const kernels::Ops& ops_;
  worker::ThreadPool pool_;
  const std::function<void(int64_t, absl::FunctionRef<void(int64_t)>)> parallel_ =
      [this](int64_t count, absl::FunctionRef<void(int64_t)> fn) {
        pool_.ParallelItems(count, fn);
      };
  LayerRunner runner_, fast_runner_;
  std::unique_ptr<model::OverlayCheckpoint> overlay_;

  std::map<std::string, uint32_t> of_layer_;
  std::map<uint32_t, std::vector<std::string>> quantized_, kept_;  // by layer, in the file's order
  std::vector<std::string> rest_, ignored_;
  std::map<std::string, uint64_t> sizes_;  // of the tensors of SpQR, once all layers are written

  uint32_t next_ = 0;
  Stream calibration_;
  // Of the evaluations. With activations of 8 bits they come a second time behind the others in
  // after_, and run in the recipe that has them.
  std::vector<Stream> before_, after_;
  QuantizeReport report_;
};

std::string_view NameOf(Method method) {
  switch (method) {
    case Method::kRtn:
      return "round to nearest";
    case Method::kGptq:
      return "GPTQ";
    case Method::kAwq:
      return "AWQ";
    case Method::kSpqr:
      return "SpQR";
    case Method::kSmoothQuant:
      break;
  }
  return "SmoothQuant";
}

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeModel(const QuantizeJob& job,
                                             std::shared_ptr<const model::Checkpoint> file,
                                             const Clock& clock, const LayerDone& done) {
  auto spec = model::LoadSpec(*file);
  if (!spec.ok()) return spec.status();
  return Quantizer(job, std::move(file), *std::move(spec), clock).Run(done);
}

std::string ReportText(const QuantizeJob& job, const QuantizeReport& report) {
  const Settings& settings = job.settings;
  std::string text = absl::StrFormat(
      "# Quantised with flotilla\n\n%s, %d bits, %s, %s%s: %.3f bits per weight of the matrices of "
      "the layers.\n",
      std::string(NameOf(settings.method)), settings.bits,
      settings.symmetric ? "symmetric" : "with zeros",
      settings.group == 0 ? "a scale for each row"
                          : absl::StrFormat("groups of %d", settings.group),
      !settings.int8_activations ? ""
      : settings.method == Method::kSmoothQuant
          ? absl::StrFormat(", activations of 8 bits, alpha %g", settings.alpha)
          : ", activations of 8 bits",
      report.bits);
  if (settings.method == Method::kSpqr) {
    text += absl::StrFormat(
        "\nOutliers are about %.2f %% of the weights. Bits are those of codes (3), of their scales "
        "and zeros (0.625),\nand of outliers (32 each, and 32 for each row). In the file codes and "
        "scales take 4 bits.\n",
        100 * settings.outliers);
  }
  text += PerplexityText(report.perplexities);
  text +=
      "\nErrors are the squares of what changed in the outputs of a matrix, over those of the "
      "outputs, with\nthe inputs of the calibration.\n\n| matrix | bits per weight | error | "
      "error of rounding to nearest |\n|---|---|---|---|\n";
  const auto error = [](double value) {
    return value < 0 ? std::string("–") : absl::StrFormat("%.3g", value);
  };
  for (const MatrixReport& matrix : report.matrices) {
    absl::StrAppendFormat(&text, "| `%s` | %.3f | %s | %s |\n", matrix.name, matrix.bits,
                          error(matrix.error), error(matrix.nearest_error));
  }
  return text;
}

}  // namespace flotilla::quantize

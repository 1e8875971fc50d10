// Speed of products with weights of each format, beside those of Q8_0.
//
//   formats_benchmark [--isa=NAME, default the best] [--rounds=N, default 7] [--threads=N, default
//   all CPUs] [format ...]
//
// Matrices are 4096 x 4096. Each product reads another one of at least 512 MiB of them, as a
// model's layers do, so weights come from memory. A product is that of the recipe "accurate": with
// 16-bit activations where the kind has it; that of W8A8 is of "fast", with 8-bit activations. All
// formats take turns; each figure is the median of the rounds. Prints a Markdown table.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/packed_matrix.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

constexpr int kSize = 4096;
constexpr int64_t kLeastBytes = int64_t{512} << 20;
constexpr int kManyRows = 64;
// Products of many rows in a round: their weights count little.
constexpr int kManyProducts = 8;

struct Timed {
  std::string name;
  std::vector<PackedMatrix> matrices;
  QuantizedBuffer x{0, 0, 0};     // the rows as the matrices want them
  std::vector<double> one, many;  // seconds per product, of each round
};

PackedMatrix Random(testing::Random& random, const WeightEncoding& encoding) {
  auto matrix = PackedMatrix::Create(encoding, kSize, kSize);
  if (!matrix.ok()) {
    std::fprintf(stderr, "%s\n", matrix.status().ToString().c_str());
    std::exit(1);
  }
  // All panels have the same weights: a product does not see that.
  const RandomWeights weights(random, encoding, kPanelOutputs, kSize);
  const auto panel = std::make_unique<WeightPanel>();
  panel->encoding = encoding;
  panel->outputs = kPanelOutputs;
  panel->begin = 0;
  panel->end = kPanelWindow;
  for (int k = 0; k < kSize; k += kPanelWindow) {
    for (int c = 0; c < kPanelOutputs; ++c) panel->rows[c] = weights.row(c, k);
    for (int column = 0; column < kSize; column += kPanelOutputs) {
      if (!matrix->PackPanel(*panel, column, k).ok()) std::exit(1);
    }
  }
  return *std::move(matrix);
}

// Threads that share the panels of one product after the other, each a fixed part.
class Threads {
 public:
  explicit Threads(int count) : begin_(count), end_(count) {
    for (int t = 1; t < count; ++t) {
      threads_.emplace_back([this, t, count] {
        while (true) {
          begin_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)(t, count);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~Threads() {
    work_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(absl::FunctionRef<void(int part, int parts)> work) {
    work_ = &work;
    begin_.arrive_and_wait();
    work(0, static_cast<int>(threads_.size()) + 1);
    end_.arrive_and_wait();
  }

 private:
  std::barrier<> begin_, end_;
  const absl::FunctionRef<void(int, int)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const Ops& ops, int rounds, int threads, const std::vector<std::string>& names) {
  testing::Random random(1);
  const std::vector<float> x = random.Floats(size_t{kManyRows} * kSize);
  std::vector<Timed> formats;
  for (auto [name, encoding] : AllFormats()) {
    if (encoding.groups > 0) encoding.groups = kSize / 128;  // as GPTQ has them
    const bool wanted = std::find(names.begin(), names.end(), name) != names.end();
    if (!names.empty() && !wanted && name != "Q8_0") continue;
    Timed& format = formats.emplace_back();
    format.name = name;
    for (int64_t bytes = 0; bytes < kLeastBytes; bytes += format.matrices.back().bytes()) {
      format.matrices.push_back(Random(random, encoding));
    }
    format.x = Quantize(ops, x, kManyRows, format.matrices[0].view());
    std::fprintf(stderr, "packed %s: %zu matrices\n", name.c_str(), format.matrices.size());
  }
  Threads pool(threads);
  std::vector<float> out(size_t{kManyRows} * kSize);
  const auto seconds = [&](Timed& format, int rows, size_t products) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < products; ++i) {
      const MatrixView matrix = format.matrices[i % format.matrices.size()].view();
      pool.Run([&](int part, int parts) {
        const int first = matrix.panels() * part / parts;
        const int last = matrix.panels() * (part + 1) / parts;
        if (HasIntegerProduct(matrix.kind) || HasInt8Product(matrix.kind)) {
          const auto multiply = HasInt8Product(matrix.kind) ? ops.matmul_i8 : ops.matmul_i16;
          multiply({.weights = matrix,
                    .x = format.x.view(),
                    .rows = rows,
                    .out = out.data(),
                    .out_stride = kSize},
                   first, last);
        } else {
          ops.matmul_f32({.weights = matrix,
                          .x = x.data(),
                          .x_stride = kSize,
                          .rows = rows,
                          .out = out.data(),
                          .out_stride = kSize},
                         first, last);
        }
      });
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(products);
  };
  for (int round = 0; round < rounds; ++round) {
    for (Timed& format : formats) {
      format.one.push_back(seconds(format, 1, format.matrices.size()));
      format.many.push_back(seconds(format, kManyRows, kManyProducts));
    }
  }
  const auto base = std::find_if(formats.begin(), formats.end(),
                                 [](const Timed& format) { return format.name == "Q8_0"; });
  std::printf(
      "| format | bits per weight | 1 row, GB/s | times Q8_0 | %d rows, GOP/s | times Q8_0 |\n",
      kManyRows);
  std::printf("|---|---|---|---|---|---|\n");
  for (const Timed& format : formats) {
    const auto bytes = static_cast<double>(format.matrices.front().bytes());
    const double weights = double{kSize} * kSize;
    std::printf("| `%s` | %.2f | %.1f | %.2f | %.0f | %.2f |\n", format.name.c_str(),
                bytes * 8 / weights, bytes / Median(format.one) / 1e9,
                Median(base->one) / Median(format.one),
                2 * weights * kManyRows / Median(format.many) / 1e9,
                Median(base->many) / Median(format.many));
  }
  std::printf("\n%s, %d threads, median of %d rounds.\n", std::string(ops.name).c_str(), threads,
              rounds);
  return 0;
}

}  // namespace
}  // namespace flotilla::kernels

int main(int argc, char** argv) {
  namespace kernels = flotilla::kernels;
  const kernels::Ops* ops = &kernels::GetOps(kernels::DetectIsas().back());
  int rounds = 7, threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    bool valid = true;
    if (absl::ConsumePrefix(&word, "--isa=")) {
      const auto isa = kernels::ParseIsa(std::string_view(word.data(), word.size()));
      valid = isa.ok();
      if (valid) ops = &kernels::GetOps(*isa);
    } else if (absl::ConsumePrefix(&word, "--rounds=")) {
      valid = absl::SimpleAtoi(word, &rounds) && rounds > 0;
    } else if (absl::ConsumePrefix(&word, "--threads=")) {
      valid = absl::SimpleAtoi(word, &threads) && threads > 0;
    } else {
      valid = word.empty() || word[0] != '-';
      names.emplace_back(word);
    }
    if (!valid) {
      std::fprintf(
          stderr,
          "usage: formats_benchmark [--isa=NAME] [--rounds=N] [--threads=N] [format ...]\n");
      return 2;
    }
  }
  return kernels::Run(*ops, rounds, threads, names);
}

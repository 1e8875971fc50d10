#include "cli/quantize.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/progress.h"
#include "cli/text_file.h"
#include "common/report/svg_plot.h"
#include "common/rt/clock.h"
#include "common/rt/cpu_quota.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "model/text/tokenizer.h"
#include "quantize/evaluation.h"
#include "quantize/gguf_types.h"
#include "quantize/quantize_gguf.h"
#include "quantize/quantize_model.h"

namespace flotilla::cli {
namespace {

constexpr char kQuantizeExamples[] = R"(
Examples:
  GPTQ with 4 bits, which a text calibrates and another one measures:
    flotilla quantize --model SmolLM2 --out SmolLM2-4bit --calibration train.txt \
      --evaluation test.txt
  AWQ with a zero for each group of 64:
    flotilla quantize --model SmolLM2 --out SmolLM2-awq --method awq --group-size 64 --zeros \
      --calibration train.txt
  SpQR, with 1 % of the weights as outliers beside 3 bits:
    flotilla quantize --model SmolLM2 --out SmolLM2-spqr --method spqr --calibration train.txt
  Round to nearest, without a text:
    flotilla quantize --model SmolLM2 --out SmolLM2-8bit --method rtn --bits 8
  SmoothQuant, for 8-bit activations as flotilla serve --compute fast has them:
    flotilla quantize --model SmolLM2 --out SmolLM2-w8a8 --method smoothquant \
      --calibration train.txt --evaluation test.txt
  A GGUF file in Q4_K of one in F32, F16 or BF16, without a text:
    flotilla quantize --model SmolLM2.BF16.gguf --out SmolLM2.Q4_K.gguf --type q4_k

The new folder has the layout "pack-quantized" of compressed-tensors, "int-quantized" for 8-bit
activations, which flotilla, vLLM and transformers read, or that of spqr-quant. Beside it are a page
quantization.md that says what each matrix has lost, and a plot of it. A run that was interrupted goes on
with --resume. A GGUF file is one that llama.cpp reads, too; the page of OUT.gguf is OUT.gguf.md.)";

// Tokens of one text of the calibration or evaluation.
constexpr size_t kTextTokens = 2048;

// The first tokens of the file, as texts.
absl::StatusOr<std::vector<std::vector<TokenId>>> ReadTexts(const std::string& path,
                                                            const model::Tokenizer& tokenizer,
                                                            std::int64_t most,
                                                            std::uint32_t context) {
  std::vector<std::vector<TokenId>> texts;
  if (path.empty()) return texts;
  const auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  const auto tokens = tokenizer.Encode(*text);
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(),
                        absl::StrCat(path, ": ", tokens.status().message()));
  }
  const auto count = std::min(tokens->size(), static_cast<size_t>(most));
  const size_t length = std::min<size_t>(kTextTokens, context);
  for (size_t begin = 0; begin < count; begin += length) {
    const auto first = tokens->begin() + static_cast<std::ptrdiff_t>(begin);
    texts.emplace_back(first, first + static_cast<std::ptrdiff_t>(std::min(length, count - begin)));
  }
  if (texts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no text"));
  return texts;
}

// The errors of the matrices over the layers, a panel for each kind of matrix. A matrix of layer 3
// is called "model.layers.3.mlp.down_proj.weight", or similarly.
std::string DrawErrors(const quantize::QuantizeReport& report, const std::string& method) {
  std::vector<std::string> kinds;
  std::vector<SvgPlot> panels;
  for (const quantize::MatrixReport& matrix : report.matrices) {
    const std::vector<std::string> parts = absl::StrSplit(matrix.name, '.');
    double layer = 0;
    std::vector<std::string> rest;
    for (const std::string& part : parts) {
      if (!absl::SimpleAtod(part, &layer) && part != "model" && part != "layers" &&
          part != "weight") {
        rest.push_back(part);
      }
    }
    const std::string kind = absl::StrJoin(rest, ".");
    const auto at = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
    if (at == static_cast<std::ptrdiff_t>(kinds.size())) {
      kinds.push_back(kind);
      SvgPlot& panel = panels.emplace_back();
      panel.title = kind;
      panel.x_label = "layer";
      panel.y_label = "error";
      panel.log_y = true;
      panel.series = {{.name = method, .points = {}, .marks = true},
                      {.name = "round to nearest", .points = {}, .marks = true}};
    }
    std::vector<PlotSeries>& series = panels[static_cast<size_t>(at)].series;
    series[0].points.emplace_back(layer, matrix.error);
    series[1].points.emplace_back(layer, matrix.nearest_error);
  }
  return DrawGrid("Output errors of the matrices", panels, 2);
}

// The page of a model, beside it or in its folder.
absl::Status WritePage(const std::filesystem::path& path, const std::string& text) {
  const std::string folder = path.parent_path().string();
  return WriteTextFile(folder.empty() ? "." : folder, path.filename().string(), text);
}

void Say(const quantize::PerplexityReport& each) {
  std::cout << absl::StrFormat(
      "%s: perplexity %.4f, before %.4f (%+.2f %% ± %.2f); top-5 error %.4f\n", each.name,
      each.after, each.before, each.change() * 100, each.uncertainty * 100, each.top5_error);
}

// What the texts of the flags have been read to.
struct QuantizeTexts {
  std::vector<std::vector<TokenId>> calibration;
  std::vector<quantize::Evaluation> evaluations;
};

absl::StatusOr<QuantizeTexts> ReadAllTexts(const QuantizeFlags& flags,
                                           const model::Checkpoint& file) {
  QuantizeTexts texts;
  const auto spec = model::LoadSpec(file);
  if (!spec.ok()) return spec.status();
  const auto bundle = file.ReadTokenizer();
  if (!bundle.ok()) return bundle.status();
  const auto tokenizer = model::Tokenizer::Create(*bundle);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto read = [&](const std::string& path, std::int64_t most) {
    return ReadTexts(path, *tokenizer, most, spec->context_length);
  };
  auto calibration = read(flags.calibration, flags.calibration_tokens);
  if (!calibration.ok()) return calibration.status();
  texts.calibration = *std::move(calibration);
  for (const std::string& path : flags.evaluation) {
    auto evaluation = read(path, flags.evaluation_tokens);
    if (!evaluation.ok()) return evaluation.status();
    texts.evaluations.push_back(
        {.name = std::filesystem::path(path).filename(), .texts = *std::move(evaluation)});
  }
  return texts;
}

int ThreadsOf(const QuantizeFlags& flags) {
  return flags.threads > 0 ? static_cast<int>(flags.threads) : AvailableCpus();
}

// The type says all of a GGUF file, so flags of the methods have nothing to say.
absl::Status CheckFlagsOfType(const QuantizeFlags& flags) {
  if (flags.given.contains("--method") && flags.method != "rtn") {
    return absl::InvalidArgumentError(absl::StrCat("--method ", flags.method,
                                                   " does not go with --type: a GGUF file is made "
                                                   "without calibration, by --method rtn"));
  }
  for (const char* flag :
       {"--activations", "--alpha", "--bits", "--group-size", "--zeros", "--calibration",
        "--calibration-tokens", "--damp", "--order", "--outliers"}) {
    if (!flags.given.contains(flag)) continue;
    return absl::InvalidArgumentError(absl::StrCat(flag, " does not go with --type: --type ",
                                                   flags.type, " says how weights are stored"));
  }
  if (flags.given.contains("--resume")) {
    return absl::InvalidArgumentError(
        "--resume does not go with --type: a GGUF file is made in one run; leave --resume out, and "
        "the file is made from its beginning");
  }
  return absl::OkStatus();
}

// The layout of SpQR says how weights are stored.
absl::Status CheckFlagsOfSpqr(const QuantizeFlags& flags) {
  const auto refuse = [](std::string_view flag, std::string_view reason) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(flag), " does not go with --method spqr: ", std::string(reason)));
  };
  if (flags.method != "spqr") {
    return flags.given.contains("--outliers")
               ? absl::InvalidArgumentError("--outliers goes with --method spqr only")
               : absl::OkStatus();
  }
  if (flags.given.contains("--bits") && flags.bits != quantize::SpqrMatrix::kBits) {
    return refuse(absl::StrCat("--bits ", flags.bits), "its layout has 3 bits");
  }
  if (flags.given.contains("--group-size") && flags.group_size != quantize::SpqrMatrix::kGroup) {
    return refuse(absl::StrCat("--group-size ", *flags.group_size), "its layout has groups of 16");
  }
  if (flags.given.contains("--order") && flags.order != "natural") {
    return refuse(absl::StrCat("--order ", flags.order), "it rounds inputs in their order");
  }
  return absl::OkStatus();
}

// The settings of a job. INVALID_ARGUMENT: flags contradict each other.
absl::StatusOr<quantize::Settings> SettingsOf(const QuantizeFlags& flags) {
  using quantize::Method;
  if (absl::Status status = CheckFlagsOfSpqr(flags); !status.ok()) return status;
  quantize::Settings settings{.method = flags.method == "gptq"          ? Method::kGptq
                                        : flags.method == "awq"         ? Method::kAwq
                                        : flags.method == "smoothquant" ? Method::kSmoothQuant
                                                                        : Method::kRtn,
                              .bits = static_cast<int>(flags.bits),
                              .symmetric = !flags.zeros,
                              .group = flags.group_size.value_or(128),
                              .damp = flags.damp,
                              .by_importance = flags.order == "importance",
                              .alpha = flags.alpha};
  if (flags.method == "spqr") {
    settings = quantize::Settings::Spqr();
    settings.damp = flags.damp;
    settings.outliers = flags.outliers / 100;
  }
  if (flags.activations.empty() && settings.method != Method::kSmoothQuant) return settings;
  if (settings.method == Method::kAwq || settings.method == Method::kSpqr) {
    return absl::InvalidArgumentError(absl::StrCat("--activations int8 does not go with --method ",
                                                   flags.method,
                                                   "; it goes with rtn, gptq and smoothquant"));
  }
  const auto refused = [&](const char* flag) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag,
                     " says something else than 8-bit activations need: integers of 8 bits "
                     "without zeros, and --group-size 0"));
  };
  if (flags.given.contains("--bits") && flags.bits != 8) return refused("--bits");
  if (flags.given.contains("--group-size") && flags.group_size != 0) return refused("--group-size");
  if (flags.zeros) return refused("--zeros");
  settings.bits = 8;
  settings.group = 0;
  settings.int8_activations = true;
  return settings;
}

// Makes a GGUF file.
absl::Status RunQuantizeGguf(const QuantizeFlags& flags) {
  const auto target = quantize::FindGgufTarget(flags.type);
  if (!target.ok()) return target.status();
  const absl::Status checked = CheckFlagsOfType(flags);
  if (!checked.ok()) return checked;
  const quantize::GgufJob job{
      .from = flags.model, .to = flags.out, .target = *target, .threads = ThreadsOf(flags)};
  const auto file = model::OpenCheckpoint(flags.model);
  if (!file.ok()) return file.status();
  std::vector<quantize::Evaluation> evaluations;
  if (!flags.evaluation.empty()) {
    auto texts = ReadAllTexts(flags, **file);
    if (!texts.ok()) return texts.status();
    evaluations = std::move(texts->evaluations);
  }
  const SteadyClock clock;
  std::optional<ProgressLine> progress(std::in_place, &clock, "quantising", "weights");
  auto report = quantize::QuantizeGguf(
      job, **file, [&](std::uint64_t done, std::uint64_t all) { progress->Update(done, all); });
  if (!report.ok()) return report.status();
  if (!evaluations.empty()) {
    const auto made = model::OpenCheckpoint(flags.out);
    if (!made.ok()) return made.status();
    progress.emplace(&clock, "evaluating", "layers");
    auto perplexities = quantize::Evaluate(
        **file, **made, evaluations, kernels::DetectIsas().back(), job.threads, clock,
        [&](std::uint32_t done, std::uint32_t layers) { progress->Update(done, layers); });
    if (!perplexities.ok()) return perplexities.status();
    report->perplexities = *std::move(perplexities);
  }
  progress.reset();
  const absl::Status written = WritePage(flags.out + ".md", quantize::ReportText(job, *report));
  if (!written.ok()) return written;
  std::cout << absl::StrFormat(
      "%s: %d matrices, %.3f bits per weight; %.3f of the file, which has %d bytes\n", flags.out,
      std::ranges::count_if(report->tensors, &quantize::GgufTensorReport::quantized),
      report->matrix_bits(), report->file_bits(), report->bytes);
  for (const quantize::PerplexityReport& each : report->perplexities) Say(each);
  return absl::OkStatus();
}

}  // namespace

void AddQuantizeFlags(CLI::App& app, QuantizeFlags* flags) {
  const auto between = [](double low, double high) {
    return CLI::Range(low, high).description("");
  };
  app.add_option("--model", flags->model,
                 "The Hugging Face folder of the model; with --type its GGUF file.")
      ->required()
      ->type_name("PATH");
  app.add_option("--out", flags->out, "The folder that is made; with --type the GGUF file.")
      ->required()
      ->type_name("PATH");
  std::vector<std::string> types;
  for (const quantize::GgufTarget& target : quantize::GgufTargets()) {
    types.emplace_back(target.name);
  }
  app.add_option("--type", flags->type,
                 "A GGUF file is made of a GGUF file in F32, F16 or BF16, and the matrices of its "
                 "layers get this type. The output matrix gets Q6_K, or Q8_0 with q8_0. Rows that "
                 "are no whole blocks of a type get the one that llama.cpp takes.")
      ->type_name(absl::StrJoin(types, "|"))
      ->check(CLI::IsMember(types).description(""));
  app.add_option(
         "--method", flags->method,
         "How weights become integers: gptq makes good for what rounding does to the "
         "outputs, awq gives weights of large inputs more precision, spqr keeps the weights "
         "that rounding would hurt most as outliers beside 3 bits, and rtn takes the "
         "nearest integers. smoothquant makes large inputs smaller and their weights "
         "larger, for 8-bit activations, and then goes on as gptq with 8 bits. "
         "[default gptq]")
      ->type_name("gptq|awq|spqr|rtn|smoothquant")
      ->check(CLI::IsMember({"gptq", "awq", "spqr", "rtn", "smoothquant"}).description(""));
  app.add_option("--activations", flags->activations,
                 "int8: the weights are integers of 8 bits with a scale for each row, and the "
                 "folder says that they are multiplied by 8-bit activations with a scale for each "
                 "token. rtn and gptq may have it, and smoothquant always does.")
      ->type_name("int8")
      ->check(CLI::IsMember({"int8"}).description(""));
  app.add_option("--alpha", flags->alpha,
                 "smoothquant divides inputs by their largest magnitude to this power, over that "
                 "of their weights to the rest. [default 0.5]")
      ->check(between(0, 1));
  app.add_option("--bits", flags->bits,
                 "The bits of an integer. [default 4; 8 for 8-bit activations]")
      ->type_name("2|3|4|8")
      ->check(CLI::IsMember({2, 3, 4, 8}).description(""));
  app.add_option("--group-size", flags->group_size,
                 "The number of weights of a row that share a scale, which divides all rows; 0 "
                 "means the whole row. [default the largest of 128, 64 and 32 that divides them; 0 "
                 "for 8-bit activations]")
      ->check(between(0, 1 << 20));
  app.add_flag(
      "--zeros", flags->zeros,
      "Each group has a zero of its own beside the scale. Else the zero is in the middle.");
  app.add_option("--calibration", flags->calibration,
                 "A text file like what the model will read. gptq, awq, spqr and "
                 "smoothquant need one.")
      ->type_name("PATH");
  app.add_option("--calibration-tokens", flags->calibration_tokens,
                 "The most tokens of it that are used. [default 32768]")
      ->check(between(128, 1 << 24));
  app.add_option("--evaluation", flags->evaluation,
                 "A text file whose perplexity is measured before and after. The flag may come "
                 "several times.")
      ->type_name("PATH");
  app.add_option("--evaluation-tokens", flags->evaluation_tokens,
                 "The most tokens of each that are used. [default 8192]")
      ->check(between(2, 1 << 24));
  app.add_option("--damp", flags->damp,
                 "gptq, smoothquant and spqr add this part of the mean importance to the "
                 "importance of each input. "
                 "[default 0.01]")
      ->check(between(1e-6, 1));
  app.add_option("--order", flags->order,
                 "Which inputs gptq and smoothquant round first: those that matter most, or the "
                 "first ones. Groups are those of neighbours in both. [default importance]")
      ->type_name("importance|natural")
      ->check(CLI::IsMember({"importance", "natural"}).description(""));
  app.add_option(
         "--outliers", flags->outliers,
         "The percentage of the weights that spqr keeps as outliers, about; the bits are in "
         "quantization.md. [default 1]")
      ->check(between(0, 100));
  app.add_option("--threads", flags->threads,
                 "The number of threads; 0 means one for each CPU. The result does not depend on "
                 "it.")
      ->check(between(0, 1024));
  app.add_flag("--resume", flags->resume, "The run goes on where an earlier one has ended.");
  app.footer(kQuantizeExamples);
  app.parse_complete_callback([&app, flags] {
    for (const CLI::Option* option : app.get_options()) {
      if (option->count() > 0) flags->given.insert(option->get_name());
    }
  });
}

absl::Status RunQuantize(const QuantizeFlags& flags) {
  if (!flags.type.empty()) return RunQuantizeGguf(flags);
  const auto settings = SettingsOf(flags);
  if (!settings.ok()) return settings.status();
  quantize::QuantizeJob job{.from = flags.model,
                            .to = flags.out,
                            .settings = *settings,
                            .halve_group = !flags.group_size.has_value(),
                            .calibration = {},
                            .evaluations = {},
                            .resume = flags.resume,
                            .threads = ThreadsOf(flags),
                            .isa = kernels::DetectIsas().back()};
  if (job.settings.calibrates() && flags.calibration.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--method ", flags.method, " needs --calibration, a text file; --method rtn needs none"));
  }
  const auto file = model::OpenCheckpoint(flags.model);
  if (!file.ok()) return file.status();
  auto texts = ReadAllTexts(flags, **file);
  if (!texts.ok()) return texts.status();
  if (job.settings.calibrates()) job.calibration = std::move(texts->calibration);
  job.evaluations = std::move(texts->evaluations);

  const SteadyClock clock;
  ProgressLine progress(&clock, "quantising", "layers");
  std::optional<std::uint32_t> before;  // layers of the run that is resumed
  const auto report =
      quantize::QuantizeModel(job, *file, clock, [&](std::uint32_t done, std::uint32_t layers) {
        if (!before.has_value()) before = done - 1;
        progress.Update(done - *before, layers - *before);
      });
  if (!report.ok()) return report.status();
  if (job.settings.calibrates()) {
    const absl::Status drawn =
        WriteTextFile(flags.out, "quantization.svg", DrawErrors(*report, flags.method));
    if (!drawn.ok()) return drawn;
  }
  std::cout << absl::StrFormat("%s: %d matrices, %.3f bits per weight\n", flags.out,
                               report->matrices.size(), report->bits);
  for (const quantize::PerplexityReport& each : report->perplexities) Say(each);
  return absl::OkStatus();
}

}  // namespace flotilla::cli

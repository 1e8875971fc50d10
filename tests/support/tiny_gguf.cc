#include "tests/support/tiny_gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "tests/support/encode_weights.h"
#include "tests/support/put_bytes.h"
#include "tests/support/random.h"

namespace flotilla::testing {
namespace {

constexpr size_t kAlignment = 32;

void PutString(std::vector<std::byte>& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  Append(out, text.data(), text.size());
}

void Pad(std::vector<std::byte>& out) {
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
}

// The byte-level alphabet: printable bytes stand for themselves, the other 68
// for U+0100 and up, in ascending order.
std::string ByteLevel(std::string_view bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    int code = 0x100;
    for (int b = 0; b <= byte; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      if (b == byte && printable) code = byte;
      if (b < byte && !printable) ++code;
    }
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return text;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;
};

Vocabulary MakeVocabulary(const TinyModelOptions& o) {
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;
  const uint32_t size = o.vocab - o.padding;
  Vocabulary vocab;
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocab.tokens.push_back(control);
    vocab.types.push_back(kControl);
  }
  std::set<std::string> known;
  const auto add = [&](const std::string& bytes) {
    vocab.tokens.push_back(ByteLevel(bytes));
    vocab.types.push_back(kNormal);
    known.insert(bytes);
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  // Each word adds its prefixes, shortest first, so every token is one merge
  // of two earlier ones.
  for (const std::string word : {" the", " and", "ing", "er", " user", "assistant", "system", " is",
                                 " you", "hello", " world", "\xc3\xa9", "\n\n", "  "}) {
    for (size_t n = 2; n <= word.size() && vocab.tokens.size() < size; ++n) {
      if (known.contains(word.substr(0, n))) continue;
      vocab.merges.push_back(ByteLevel(word.substr(0, n - 1)) + " " +
                             ByteLevel(word.substr(n - 1, 1)));
      add(word.substr(0, n));
    }
  }
  while (vocab.tokens.size() < o.vocab) {
    const size_t id = vocab.tokens.size();
    const bool padding = id >= size;
    if (padding && !o.lists_padding) break;
    vocab.tokens.push_back((padding ? "[PAD" : "<unused_") + std::to_string(id) +
                           (padding ? "]" : ">"));
    vocab.types.push_back(kUnused);
  }
  return vocab;
}

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

uint32_t ValueDim(const TinyModelOptions& o) { return o.value_dim == 0 ? o.head_dim : o.value_dim; }

void AddMetadata(const TinyModelOptions& o, GgufBuilder& file) {
  const std::string architecture = o.head_norms ? "qwen3" : "llama";
  const auto key = [&](std::string_view name) { return architecture + "." + std::string(name); };
  file.AddString("general.architecture", architecture);
  file.AddString("general.name", "tiny");
  file.AddUint32("general.quantization_version", 2);
  file.AddUint32(key("block_count"), o.layers);
  file.AddUint32(key("context_length"), o.context_length);
  file.AddUint32(key("embedding_length"), o.hidden);
  file.AddUint32(key("feed_forward_length"), o.ffn);
  file.AddUint32(key("attention.head_count"), o.heads);
  file.AddUint32(key("attention.head_count_kv"), o.kv_heads);
  file.AddUint32(key("attention.key_length"), o.head_dim);
  file.AddUint32(key("attention.value_length"), ValueDim(o));
  file.AddUint32(key("rope.dimension_count"), o.head_dim);
  file.AddFloat(key("rope.freq_base"), o.rope_base);
  file.AddFloat(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  file.AddUint32(key("vocab_size"), o.vocab);
  if (o.experts > 0) {
    file.AddUint32(key("expert_count"), o.experts);
    file.AddUint32(key("expert_used_count"), 2);
  }

  const Vocabulary vocab = MakeVocabulary(o);
  file.AddString("tokenizer.ggml.model", "gpt2");
  file.AddString("tokenizer.ggml.pre", o.pretokenizer);
  file.AddStrings("tokenizer.ggml.tokens", vocab.tokens);
  file.AddInts("tokenizer.ggml.token_type", vocab.types);
  file.AddStrings("tokenizer.ggml.merges", vocab.merges);
  file.AddUint32("tokenizer.ggml.bos_token_id", kTinyImStart);
  file.AddUint32("tokenizer.ggml.eos_token_id", kTinyImEnd);
  file.AddBool("tokenizer.ggml.add_bos_token", false);
  file.AddString("tokenizer.chat_template", kChatMl);
}

void AddWeights(const TinyModelOptions& o, GgufBuilder& file) {
  // Not Random: its seeds are hashed, and the weights of a seed stay what they were.
  auto unit = [state = o.seed]() mutable {
    return UnitOf(MixBits(std::exchange(state, state + kRandomStep)));
  };
  // Uniform with variance 1 / columns, so activations keep their size.
  const auto tensor = [&](const std::string& name, const std::vector<uint64_t>& dims,
                          model::GgmlType type) {
    uint64_t size = 1;
    for (const uint64_t dim : dims) size *= dim;
    std::vector<float> values(size);
    const float limit = std::sqrt(3.0f / static_cast<float>(dims[0]));
    for (float& value : values) value = limit * unit();
    file.AddTensor(name, dims, type, EncodeTensor(type, values));
  };
  const auto matrix = [&](const std::string& name, uint64_t columns, uint64_t rows,
                          model::GgmlType type) {
    tensor(name, {columns, rows}, type);
  };
  const auto norm = [&](const std::string& name, uint32_t width) {
    std::vector<float> values(width);
    for (float& value : values) value = 1.0f + 0.1f * unit();
    file.AddTensor(name, {width}, o.norm_type, EncodeTensor(o.norm_type, values));
  };
  const uint64_t q_width = uint64_t{o.heads} * o.head_dim;
  const uint64_t key_width = uint64_t{o.kv_heads} * o.head_dim;
  const uint64_t value_width = uint64_t{o.kv_heads} * ValueDim(o);
  const model::GgmlType other = o.other_type.value_or(o.matrix_type);
  matrix("token_embd.weight", o.hidden, o.vocab, o.embedding_type);
  for (uint32_t layer = 0; layer < o.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight", o.hidden);
    matrix(prefix + "attn_q.weight", o.hidden, q_width, o.matrix_type);
    matrix(prefix + "attn_k.weight", o.hidden, key_width, o.matrix_type);
    matrix(prefix + "attn_v.weight", o.hidden, value_width, other);
    matrix(prefix + "attn_output.weight", uint64_t{o.heads} * ValueDim(o), o.hidden, o.matrix_type);
    if (o.head_norms) {
      norm(prefix + "attn_q_norm.weight", o.head_dim);
      norm(prefix + "attn_k_norm.weight", o.head_dim);
    }
    norm(prefix + "ffn_norm.weight", o.hidden);
    if (o.experts > 0) {
      matrix(prefix + "ffn_gate_inp.weight", o.hidden, o.experts, model::GgmlType::kF32);
      tensor(prefix + "ffn_gate_exps.weight", {o.hidden, o.ffn, o.experts}, o.matrix_type);
      tensor(prefix + "ffn_up_exps.weight", {o.hidden, o.ffn, o.experts}, o.matrix_type);
      tensor(prefix + "ffn_down_exps.weight", {o.ffn, o.hidden, o.experts}, o.matrix_type);
      continue;
    }
    matrix(prefix + "ffn_gate.weight", o.hidden, o.ffn, o.matrix_type);
    matrix(prefix + "ffn_up.weight", o.hidden, o.ffn, other);
    matrix(prefix + "ffn_down.weight", o.ffn, o.hidden, other);
  }
  norm("output_norm.weight", o.hidden);
  if (!o.tied_embedding) matrix("output.weight", o.hidden, o.vocab, o.embedding_type);
}

[[noreturn]] void Die(const char* why) {
  std::fprintf(stderr, "tiny_gguf: %s\n", why);
  std::abort();
}

}  // namespace

void GgufBuilder::BeginValue(std::string_view key, uint32_t type) {
  PutString(values_, key);
  Put<uint32_t>(values_, type);
  ++value_count_;
}

void GgufBuilder::AddUint32(std::string_view key, uint32_t value) {
  BeginValue(key, 4);
  Put(values_, value);
}

void GgufBuilder::AddUint64(std::string_view key, uint64_t value) {
  BeginValue(key, 10);
  Put(values_, value);
}

void GgufBuilder::AddFloat(std::string_view key, float value) {
  BeginValue(key, 6);
  Put(values_, value);
}

void GgufBuilder::AddBool(std::string_view key, bool value) {
  BeginValue(key, 7);
  Put<uint8_t>(values_, value);
}

void GgufBuilder::AddBools(std::string_view key, const std::vector<bool>& values) {
  BeginValue(key, 9);
  Put<uint32_t>(values_, 7);
  Put<uint64_t>(values_, values.size());
  for (const bool value : values) Put<uint8_t>(values_, value);
}

void GgufBuilder::AddString(std::string_view key, std::string_view value) {
  BeginValue(key, 8);
  PutString(values_, value);
}

void GgufBuilder::AddStrings(std::string_view key, const std::vector<std::string>& values) {
  BeginValue(key, 9);
  Put<uint32_t>(values_, 8);
  Put<uint64_t>(values_, values.size());
  for (const std::string& value : values) PutString(values_, value);
}

void GgufBuilder::AddInts(std::string_view key, const std::vector<int32_t>& values) {
  BeginValue(key, 9);
  Put<uint32_t>(values_, 5);
  Put<uint64_t>(values_, values.size());
  for (const int32_t value : values) Put(values_, value);
}

void GgufBuilder::AddTensor(std::string_view name, const std::vector<uint64_t>& dims,
                            model::GgmlType type, std::vector<std::byte> data) {
  tensors_.push_back({std::string(name), dims, type, std::move(data)});
}

std::vector<std::byte> GgufBuilder::Build() const {
  std::vector<std::byte> out;
  Append(out, "GGUF", 4);
  Put<uint32_t>(out, 3);
  Put<uint64_t>(out, tensors_.size());
  Put<uint64_t>(out, value_count_);
  Append(out, values_.data(), values_.size());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutString(out, tensor.name);
    Put<uint32_t>(out, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) Put(out, dim);
    Put(out, static_cast<uint32_t>(tensor.type));
    Put(out, offset);
    offset = (offset + tensor.data.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  Pad(out);
  for (const Tensor& tensor : tensors_) {
    Append(out, tensor.data.data(), tensor.data.size());
    Pad(out);
  }
  return out;
}

std::vector<std::vector<std::byte>> GgufBuilder::BuildParts(size_t count) const {
  std::vector<std::vector<std::byte>> files;
  for (size_t part = 0; part < count; ++part) {
    GgufBuilder file;
    if (part == 0) file = *this;
    const size_t begin = tensors_.size() * part / count;
    const size_t end = tensors_.size() * (part + 1) / count;
    file.tensors_.assign(tensors_.begin() + begin, tensors_.begin() + end);
    file.AddUint32("split.no", static_cast<uint32_t>(part));
    file.AddUint32("split.count", static_cast<uint32_t>(count));
    file.AddUint32("split.tensors.count", static_cast<uint32_t>(tensors_.size()));
    files.push_back(file.Build());
  }
  return files;
}

GgufBuilder TinyGgufBuilder(const TinyModelOptions& options) {
  if (options.vocab < kTinyVocabMin) Die("vocab is too small");
  GgufBuilder file;
  AddMetadata(options, file);
  AddWeights(options, file);
  return file;
}

std::vector<std::byte> TinyGguf(const TinyModelOptions& options) {
  return TinyGgufBuilder(options).Build();
}

void WriteTinyGguf(const std::string& path, const TinyModelOptions& options) {
  const std::vector<std::byte> bytes = TinyGguf(options);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fclose(file) != 0) {
    Die("the file cannot be written");
  }
}

}  // namespace flotilla::testing

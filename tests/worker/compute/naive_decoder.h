// NaiveDecoder: the decoder as in a textbook, with dequantised weights, sums in double, the whole
// sequence at once and no cache. Tests compare Forward with it.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/spec.h"

namespace flotilla::worker {

class NaiveDecoder {
 public:
  NaiveDecoder(const model::Checkpoint& file, const model::ModelSpec& spec)
      : file_(file), spec_(spec) {}

  // Logits [tokens, vocab] of every position.
  std::vector<std::vector<double>> Logits(const std::vector<TokenId>& tokens) {
    const auto& embedding = Tensor("token_embd");
    std::vector<std::vector<double>> x;
    for (TokenId token : tokens) {
      const auto row = embedding.begin() + int64_t{token} * spec_.hidden;
      x.emplace_back(row, row + spec_.hidden);
    }
    for (uint32_t i = 0; i < spec_.layers.size(); ++i) Layer(absl::StrCat("blk.", i, "."), x);
    const auto& head = spec_.tied_embedding ? embedding : Tensor("output");
    std::vector<std::vector<double>> logits;
    for (const auto& row : x) logits.push_back(Product(head, Norm(row, Tensor("output_norm"))));
    return logits;
  }

 private:
  using Row = std::vector<double>;

  const std::vector<float>& Tensor(const std::string& name) {
    auto [it, added] = tensors_.try_emplace(name);
    if (added) {
      const model::Tensor* tensor = file_.FindTensor(name + ".weight");
      EXPECT_NE(tensor, nullptr) << name;
      it->second.resize(tensor->elements());
      EXPECT_TRUE(model::DequantizeRow(tensor->type, tensor->data, it->second).ok()) << name;
    }
    return it->second;
  }

  static Row Product(const std::vector<float>& matrix, const Row& x) {
    Row y(matrix.size() / x.size());
    for (size_t c = 0; c < y.size(); ++c) {
      for (size_t k = 0; k < x.size(); ++k) y[c] += x[k] * matrix[c * x.size() + k];
    }
    return y;
  }

  Row Norm(const Row& x, const std::vector<float>& weight) const {
    double sum = 0;
    for (double v : x) sum += v * v;
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] / std::sqrt(sum / x.size() + spec_.output_norm.eps) * weight[i];
    }
    return y;
  }

  void Rotate(Row& x, int position) const {
    for (size_t i = 0; i < x.size(); i += 2) {
      const size_t pair = i % spec_.attention().head_dim / 2;
      const double angle = position * double{spec_.ropes[0].frequencies[pair]};
      const double a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  Row Attend(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v,
             size_t last) const {
    const model::AttentionSpec& attention = spec_.attention();
    const uint32_t dim = attention.head_dim, group = attention.heads / attention.kv_heads;
    const uint32_t value_dim = attention.value_dim;
    Row out(attention.heads * value_dim);
    for (uint32_t h = 0; h < attention.heads; ++h) {
      const uint32_t kv = h / group * dim, values = h / group * value_dim;
      Row p(last + 1);
      double sum = 0;
      for (size_t j = 0; j <= last; ++j) {
        double score = 0;
        for (uint32_t d = 0; d < dim; ++d) score += q[h * dim + d] * k[j][kv + d];
        sum += p[j] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      for (size_t j = 0; j <= last; ++j) {
        for (uint32_t d = 0; d < value_dim; ++d) {
          out[h * value_dim + d] += p[j] / sum * v[j][values + d];
        }
      }
    }
    return out;
  }

  void Layer(const std::string& prefix, std::vector<Row>& x) {
    std::vector<Row> q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row n = Norm(x[t], Tensor(prefix + "attn_norm"));
      q.push_back(Product(Tensor(prefix + "attn_q"), n));
      k.push_back(Product(Tensor(prefix + "attn_k"), n));
      v.push_back(Product(Tensor(prefix + "attn_v"), n));
      Rotate(q[t], static_cast<int>(t));
      Rotate(k[t], static_cast<int>(t));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Add(x[t], Product(Tensor(prefix + "attn_output"), Attend(q[t], k, v, t)));
      const Row n = Norm(x[t], Tensor(prefix + "ffn_norm"));
      Row gate = Product(Tensor(prefix + "ffn_gate"), n);
      const Row up = Product(Tensor(prefix + "ffn_up"), n);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      Add(x[t], Product(Tensor(prefix + "ffn_down"), gate));
    }
  }

  static void Add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const model::Checkpoint& file_;
  const model::ModelSpec& spec_;
  std::map<std::string, std::vector<float>> tensors_;
};

}  // namespace flotilla::worker

// What a packed kind is: an arrangement of weights in the memory of CPUs.
//
// A kind is a type without state, one file of this folder and a row of kinds.h. Weights lie in
// records of kPanelColumns columns (outputs) by kBlockK inputs, which are 64-byte aligned. A kind
// has
//
//   kRecordBytes
//   Packs(encoding)            whether the kind keeps weights of this encoding exactly
//   Pack(encoding, row, k, lane, record)  packs the kBlockK weights of a window from k on as column
//                              `lane` of a record; false if a scale is out of the kind's range
//   Decode(record, lane, out)  the [kBlockK] weights of a column in fp32
//   DecodeRecord<S>(record, out)  all of them, [kBlockK][kPanelColumns]
//
// A kind may keep what is the same for a window of the file (weight_panel.h) apart from its
// records: it has kSuperBytes of it for the columns of a panel, and each of the functions takes a
// SuperRecord in place of a record, and Pack both. Such a window is of kSuperSpan elements, or of
// kPanelWindow if the kind does not say. With kHasTable there is no window: it has kSuperBytes of
// zeros and then as much for each group of the encoding, and a SuperRecord has all of them.
//
// Weights may have outliers, numbers that are added to those of the kind (kHasOutliers). A
// PackedMatrix keeps them beside the records, and the functions of the kind do not see them.
//
// Where there is no product with integers, a kind may give its weights to the product of a few rows
// without a copy (kStreams):
//
//   ForEachK<S, H>(record, half, add)  calls add(k, weights) for each k of the block, ascending,
//                              with the weights of H halves of 16 columns
//
// And, where weights are plain numbers (kIsPlain), in the order [kBlockK][kPanelColumns]:
//
//   Load<S>(weights, i)        16 weights from index i on, across records that follow each other
//
// and, where there is a product with 16-bit activations (kHasIntegerProduct), the order of its
// sums:
//
//   AddBlock(record, lane, x, sums, acc)  one column's sum after the block. x are the block's
//                              kBlockK activations, and sums the two of their group
//   AddBlock<S, R, H>(...)     the same for R rows and H halves of 16 columns
//
// A kind whose activations have 8 bits (kHasInt8Product) has in their place
//
//   Scale(record, lane)        what the integers of a column are multiplied by, in all blocks
//   Integer(record, lane, k)   the integer of a weight, code - zero
//   Scales<S>(record, half), Zeros<S>(record, half)  of 16 columns; Zeros are less than the codes
//                              of AddQuads by 128 and the zero
//   AddQuads<S, R, H>(record, half, x, block, dots)  adds a block's products of the stored codes,
//                              from 0 to 255, and the activations of R rows
//
// Kinds that kernels/cuda/ multiplies have the two parts of AddBlock by themselves:
//
//   FourCodes(record, lane, k) the integers that the activations k to k + 3 are multiplied by, a
//                              byte each; k is a multiple of 4
//   AddDot(record, lane, dot, sums, acc)  the sum after a block whose products add up to `dot`
//
// Functions of S are vector code (kernels/cpu/simd.h). The others are the scalar twin; they are
// inlined everywhere, so that none of them is linked from a file of another instruction path.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/types/weight_panel.h"
#include "kernels/cpu/simd.h"

namespace flotilla::kernels {

inline constexpr int kPanelColumns = 32;  // outputs of a record
inline constexpr int kBlockK = 32;        // inputs of a record
// Of each group of this many activations there are two exact numbers, for kinds whose weights have
// minimums: the sum, and the sum of the first half. So there is one for each kSumSpan activations.
inline constexpr int kActivationGroup = 32;
inline constexpr int kSumSpan = 16;

// The position of a kind in Kinds (kinds.h).
enum class PackedKind : uint8_t {};

// A record with what its columns have for the whole window.
struct SuperRecord {
  const std::byte* record;
  const std::byte* super;
};

template <class Kind>
inline constexpr int kSuperBytesOf = 0;
template <class Kind>
requires(Kind::kSuperBytes > 0) inline constexpr int kSuperBytesOf<Kind> = Kind::kSuperBytes;
template <class Kind>
inline constexpr int kSuperSpanOf = kPanelWindow;
template <class Kind>
requires(Kind::kSuperSpan > 0) inline constexpr int kSuperSpanOf<Kind> = Kind::kSuperSpan;
template <class Kind>
inline constexpr bool kHasSuper = kSuperBytesOf<Kind> != 0;
template <class Kind>
inline constexpr bool kHasTableOf = false;
template <class Kind>
requires(Kind::kHasTable) inline constexpr bool kHasTableOf<Kind> = true;

// Whether matmul_i8 multiplies the kind.
template <class Kind>
inline constexpr bool kHasInt8ProductOf = false;
template <class Kind>
requires(Kind::kHasInt8Product) inline constexpr bool kHasInt8ProductOf<Kind> = true;

template <class Kind>
inline constexpr bool kHasOutliersOf = false;
template <class Kind>
requires(Kind::kHasOutliers) inline constexpr bool kHasOutliersOf<Kind> = true;

template <class Kind>
concept StreamsWeights = Kind::kStreams;

// Records have each number at a multiple of its size. GPUs load it at once if they are told so.
template <typename T>
FLOTILLA_INLINE T LoadAs(const std::byte* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(p);
#endif
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename T>
FLOTILLA_INLINE void StoreAs(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

}  // namespace flotilla::kernels

// The packed kinds: one row each, and the call of a template for the kind of a matrix.
#pragma once

#include "kernels/packing/bf16.h"
#include "kernels/packing/bytes.h"
#include "kernels/packing/bytes_f32.h"
#include "kernels/packing/bytes_int8.h"
#include "kernels/packing/bytes_ordered.h"
#include "kernels/packing/bytes_zero.h"
#include "kernels/packing/five.h"
#include "kernels/packing/five_k.h"
#include "kernels/packing/floats.h"
#include "kernels/packing/fp16.h"
#include "kernels/packing/fp8.h"
#include "kernels/packing/iq4.h"
#include "kernels/packing/iq4_k.h"
#include "kernels/packing/kind.h"
#include "kernels/packing/mxfp4.h"
#include "kernels/packing/nf4.h"
#include "kernels/packing/nibbles.h"
#include "kernels/packing/nibbles_k.h"
#include "kernels/packing/nibbles_ordered.h"
#include "kernels/packing/nibbles_zero.h"
#include "kernels/packing/nvfp4.h"
#include "kernels/packing/nvfp4_f32.h"
#include "kernels/packing/six.h"
#include "kernels/packing/spqr.h"
#include "kernels/packing/spqr_ordered.h"
#include "kernels/packing/three_k.h"
#include "kernels/packing/three_zero.h"
#include "kernels/packing/two_k.h"
#include "kernels/packing/two_zero.h"

namespace flotilla::kernels {

template <class... All>
struct KindList {};

// An encoding is packed as the first kind that packs it.
using Kinds = KindList<  //
    Nibbles,             //
    Five,                //
    Bytes,               //
    Six,                 //
    NibblesK,            //
    FiveK,               //
    ThreeK,              //
    TwoK,                //
    Iq4,                 //
    Iq4K,                //
    Mxfp4,               //
    Nvfp4,               //
    NibblesZero,         //
    ThreeZero,           //
    TwoZero,             //
    BytesF32,            //
    BytesZero,           //
    BytesInt8,           //
    Nvfp4F32,            //
    NibblesOrdered,      //
    BytesOrdered,        //
    Nf4,                 //
    Fp8,                 //
    Spqr,                //
    SpqrOrdered,         //
    Floats,              //
    Bf16,                //
    Fp16>;

template <class Visitor, class... All>
FLOTILLA_INLINE void VisitKind(PackedKind kind, KindList<All...>, const Visitor& visitor) {
  int i = 0;
  (void)((i++ == static_cast<int>(kind) && (visitor.template operator()<All>(), true)) || ...);
}

// Calls visitor.operator()<Kind>() for the kind, once.
template <class Visitor>
FLOTILLA_INLINE void VisitKind(PackedKind kind, const Visitor& visitor) {
  VisitKind(kind, Kinds{}, visitor);
}

}  // namespace flotilla::kernels

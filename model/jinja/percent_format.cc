// The operator % of a format and its arguments.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "model/jinja/format.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, const Text& format, Value arguments)
      : heap_(heap), format_(format), bytes_(format.bytes()), arguments_(arguments) {}

  Value Run() {
    while (heap_.ok()) {
      const size_t percent = std::min(bytes_.find('%', at_), bytes_.size());
      if (!heap_.Charge(1 + (percent - at_) / 64)) return {};
      out_.Append(format_, at_, percent);
      if (percent == bytes_.size()) break;
      at_ = percent + 1;
      Field();
    }
    const bool is_tuple = arguments_.is(Type::kList) && arguments_.list->tuple;
    const bool may_be_left = arguments_.is(Type::kDict) || arguments_.is(Type::kUndefined) ||
                             (arguments_.is(Type::kList) && !is_tuple);
    const size_t count = is_tuple ? arguments_.list->items.size() : 1;
    if (!may_be_left && used_ < count) {
      return heap_.Fail("not all arguments converted during string formatting");
    }
    return heap_.ok() ? heap_.NewText(std::move(out_)) : Value();
  }

 private:
  char Now() const { return at_ < bytes_.size() ? bytes_[at_] : '\0'; }

  Value Next() {
    if (!named_ && arguments_.is(Type::kList) && arguments_.list->tuple) {
      if (used_ < arguments_.list->items.size()) return arguments_.list->items[used_++];
    } else if (used_ == 0) {
      ++used_;
      return named_ ? value_ : arguments_;
    }
    return heap_.Fail("not enough arguments for format string");
  }

  // The number after a field's flags or point; * takes an argument.
  int64_t Number() {
    if (Now() != '*') return ReadCount(heap_, bytes_, at_);
    ++at_;
    const Value value = Next();
    if (heap_.ok() && !value.is_integer()) heap_.Fail("* wants int");
    const int64_t number = heap_.ok() ? value.as_integer() : 0;
    if (number > kMostCharacters || number < -kMostCharacters) heap_.Exhaust("steps");
    return number;
  }

  void Name() {
    if (!arguments_.is(Type::kDict)) {
      heap_.Fail("format requires a mapping");
      return;
    }
    const size_t begin = ++at_;
    for (int open = 1; open > 0; ++at_) {
      if (at_ == bytes_.size()) {
        heap_.Fail("incomplete format key");
        return;
      }
      open += bytes_[at_] == '(' ? 1 : bytes_[at_] == ')' ? -1 : 0;
    }
    const Value* item = arguments_.dict->Find(heap_, bytes_.substr(begin, at_ - 1 - begin));
    if (item == nullptr) {
      heap_.Fail("no argument '", bytes_.substr(begin, at_ - 1 - begin), "' for the format");
      return;
    }
    named_ = true;
    used_ = 0;
    value_ = *item;
  }

  void Field() {
    if (Now() == '%') {
      ++at_;
      return out_.Append("%", false);
    }
    FormatSpec spec;
    if (Now() == '(') Name();
    bool left = false;
    for (constexpr std::string_view kFlags = "-+ #0";
         at_ < bytes_.size() && kFlags.find(Now()) != std::string_view::npos; ++at_) {
      left = left || Now() == '-';
      if (Now() == '+' || (Now() == ' ' && spec.sign != '+')) spec.sign = Now();
      spec.alternate = spec.alternate || Now() == '#';
      spec.zeros = spec.zeros || Now() == '0';
    }
    spec.width = Number();
    left = left || spec.width < 0;
    spec.width = std::abs(spec.width);
    if (Now() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(Number(), 0);
    }
    if (Now() == 'h' || Now() == 'l' || Now() == 'L') ++at_;
    if (!heap_.ok()) return;
    if (at_ >= bytes_.size()) {
      heap_.Fail("incomplete format");
      return;
    }
    spec.type = bytes_[at_++];
    spec.align = left ? '<' : '\0';
    Append(spec);
  }

  void Append(FormatSpec& spec) {
    constexpr std::string_view kIntegers = "diuxXo", kReals = "eEfFgG", kTexts = "srcdiuxXoeEfFgG";
    if (kTexts.find(spec.type) == std::string_view::npos) {
      heap_.Fail("unsupported format character '", std::string_view(&spec.type, 1), "'");
      return;
    }
    const Value value = Next();
    if (!heap_.ok()) return;
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'c') {
      if (spec.align == '\0') spec.align = '>';
      if (spec.type == 'c') spec.precision = -1;
      AppendFormatted(heap_, TextOf(spec.type, value), spec, out_);
    } else if (kReals.find(spec.type) != std::string_view::npos) {
      if (!value.is_number()) {
        heap_.Fail("must be real number, not ", TypeName(value));
        return;
      }
      AppendNumber(heap_, RealText(heap_, value.as_real(), spec), spec, out_);
    } else {
      const bool decimal = kIntegers.find(spec.type) < 3;
      if (decimal ? !value.is_number() : !value.is_integer()) {
        heap_.Fail("%", std::string_view(&spec.type, 1),
                   " format: ", decimal ? "a real number" : "an integer", " is required, not ",
                   TypeName(value));
        return;
      }
      const double real = value.as_real();
      if (!value.is_integer() && !(std::fabs(real) < 0x1p63)) {
        heap_.Fail("cannot convert a float to integer");
        return;
      }
      const int64_t whole =
          value.is_integer() ? value.as_integer() : static_cast<int64_t>(std::trunc(real));
      AppendNumber(heap_, IntegerText(heap_, whole, spec), spec, out_);
    }
  }

  Text TextOf(char type, Value value) {
    Text text;
    if (type == 's') return AsText(heap_, value);
    if (type == 'r') {
      AppendRepr(heap_, value, text);
      return text;
    }
    return CharacterText(heap_, value);
  }

  Heap& heap_;
  const Text& format_;
  std::string_view bytes_;
  Value arguments_;
  size_t at_ = 0;
  size_t used_ = 0;     // arguments
  bool named_ = false;  // the field has a name, and value_ is its only argument
  Value value_;
  Text out_;
};

}  // namespace

Value FormatPercent(Heap& heap, const Text& format, Value arguments) {
  return PercentFormatter(heap, format, arguments).Run();
}

}  // namespace flotilla::jinja

// KneeSearch: which rates a sweep tries, and the knee that they give: the highest rate that the
// server was seen to sustain, below the lowest that it did not. Pure.
#pragma once

#include <optional>

namespace flotilla::loadtest {

class KneeSearch {
 public:
  // Begins at `start`, in requests a second. Rates double until one is not sustained (or halve
  // until one is), and then halve the gap between the two, until they are within `precision` of
  // each other (0.1: 10 %). At most `most` rates are tried.
  KneeSearch(double start, double precision, int most)
      : next_(start), precision_(precision), left_(most) {}

  // The next rate to try. None: the search has ended.
  std::optional<double> Next() const;
  // What came of Next().
  void Add(bool sustained);

  // None: no rate was sustained.
  std::optional<double> knee() const { return good_; }

 private:
  double next_;
  const double precision_;
  int left_;
  std::optional<double> good_, bad_;  // the highest sustained rate, the lowest of the others
};

}  // namespace flotilla::loadtest

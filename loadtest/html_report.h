// The report of load tests as one HTML page, with charts as SVG in it: no script, no font, no other
// file. Pure.
#pragma once

#include <string>
#include <vector>

#include "loadtest/core/load_result.h"

namespace flotilla::loadtest {

struct HtmlReport {
  std::string title;
  // Runs to compare: of a comparison, of a sweep by ascending rate, or only one.
  std::vector<LoadResult> runs;
  // What the simulator predicts: of each run, or empty.
  std::vector<LoadResult> predictions;
  // Sweeps: the highest sustained rate, and that of the simulator; 0: none.
  bool sweep = false;
  double knee = 0, predicted_knee = 0;

  // The page. All texts are escaped.
  std::string Draw() const;
};

}  // namespace flotilla::loadtest

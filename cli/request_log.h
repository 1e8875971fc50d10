// The lines that the roles log about a request. They share its internal id (`request=`) and
// its trace id; lines of the router and the scheduler also have the client's name for it.
//
// A router logs the end of a request at "info". The exception is a request that was refused
// before it was accepted, for another reason than its deadline: an overload brings many of
// these, so they are logged at "debug". The other roles log at "debug" too.
#pragma once

#include <functional>

#include "common/obs/log.h"
#include "common/types/plan.h"
#include "router/service.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/server/engine_loop.h"

namespace flotilla::cli {

void LogOver(Logger& log, const router::RequestRecord& record);
void LogServed(Logger& log, const scheduler::ServedRecord& record);
// A loss of the scheduler's worker group, at "info".
void LogLost(Logger& log, const Lost& lost);
void LogPreemption(Logger& log, const scheduler::Preemption& preemption);

// Logs each sequence that a plan opens or drops; empty if `log` takes no such lines.
std::function<void(const StepPlan&)> PlanLog(Logger* log);

}  // namespace flotilla::cli

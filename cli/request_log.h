// The lines that the roles log of a request. They share its internal id (`request=`) and
// its trace id; the router and the scheduler also have the client's name of it.
//
// A router says what became of a request at "info", unless it was refused before it was
// accepted, for another reason than its deadline: as many as an overload brings, so at
// "debug", where the other roles log.
#pragma once

#include <functional>

#include "common/obs/log.h"
#include "common/types/plan.h"
#include "router/service.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/server/engine_loop.h"

namespace flotilla {

void LogOver(Logger& log, const RequestRecord& record);
void LogServed(Logger& log, const ServedRecord& record);
void LogPreemption(Logger& log, const Preemption& preemption);

// Logs each sequence that a plan opens or drops; empty if `log` takes no such lines.
std::function<void(const StepPlan&)> PlanLog(Logger* log);

}  // namespace flotilla

#pragma once

#include <cstdint>
#include <functional>

namespace regrow::cpu {

// Runs tasks on the caller's thread pool. Kernels must not let results depend on num_workers or on which worker runs
// what.
struct Executor {
  int num_workers;
  // Calls body(worker) once for each worker in [0, num_workers), possibly one after the other.
  std::function<void(const std::function<void(int worker)>& body)> run;

  // Calls body(task, worker) for every task; tasks are claimed in ascending order.
  void for_each(int64_t num_tasks, const std::function<void(int64_t task, int worker)>& body) const;
};

}  // namespace regrow::cpu

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "platform/check.h"

namespace regrow::cpu {

namespace baseline {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

namespace {

std::vector<const KernelTable*> available() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16"))
    tables.push_back(&avx512::kTable);
  if (has_avx2) tables.push_back(&avx2::kTable);
#endif
  tables.push_back(&baseline::kTable);
  return tables;
}

const std::vector<const KernelTable*>& tables() {
  static const std::vector<const KernelTable*> all = available();
  return all;
}

std::atomic<const KernelTable*> selected{nullptr};

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = selected.load(std::memory_order_relaxed);
  return table ? *table : *tables().front();
}

void select_isa(const std::string& isa) {
  std::string names;
  for (const KernelTable* table : tables()) {
    if (isa == table->isa) return selected.store(table);
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  CHECK(false, "this machine runs ", names, ", not ", isa);
}

void Executor::for_each(int64_t num_tasks, const std::function<void(int64_t, int)>& body) const {
  if (num_tasks == 0) return;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  std::mutex error_mutex;
  run([&](int worker) {
    for (int64_t task; !failed && (task = next.fetch_add(1)) < num_tasks;) {
      try {
        body(task, worker);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex);
        if (!error) error = std::current_exception();
        failed = true;
      }
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace regrow::cpu

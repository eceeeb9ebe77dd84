#include <cstring>
#include <map>

#include "emulator/probes.cuh"
#include "emulator/probes_mbarriers.cuh"
#include "emulator/probes_turns.cuh"
#include "emulator/program.cuh"
#include "emulator/runs.h"
#include "platform/check.h"

namespace regrow::emulator {
namespace {

using Probe = void (*)(ProbeParams);

const std::map<std::string, Probe>& probes_by_name() {
#define PROBE(name)      \
  {                      \
    #name, &probes::name \
  }
  static const std::map<std::string, Probe> all = {
      PROBE(reverse_by_block),
      PROBE(reverse_by_warp),
      PROBE(producer_consumer),
      PROBE(copy_through_shared),
      {"copy_4_bytes", &probes::copy_values_through_shared<int32_t>},
      {"copy_8_bytes", &probes::copy_values_through_shared<int64_t>},
      PROBE(matrices_of_own_rows),
      PROBE(shuffles),
      PROBE(half_warp_shuffles),
      PROBE(exponentials),
      {"packing_bfloat16", &probes::packing<bf16>},
      {"packing_float16", &probes::packing<fp16>},
      PROBE(strided_stores),
      PROBE(reads_unwritten_shared),
      PROBE(race_with_right_result),
      PROBE(shuffle_instead_of_barrier),
      PROBE(warp_barrier_between_warps),
      PROBE(global_race_in_block),
      PROBE(two_blocks_write_one_address),
      PROBE(reads_what_another_block_writes),
      PROBE(writes_past_the_end),
      PROBE(reads_past_the_end),
      PROBE(writes_an_input),
      PROBE(narrow_access),
      PROBE(misaligned_global),
      PROBE(index_past_shared_array),
      PROBE(row_past_a_tile),
      PROBE(more_shared_than_launched),
      PROBE(misaligned_shared),
      PROBE(misaligned_copy_to_shared),
      PROBE(misaligned_copy_from_global),
      PROBE(copy_past_shared),
      PROBE(divergent_barrier),
      PROBE(barrier_without_returned_threads),
      PROBE(barriers_in_opposite_order),
      PROBE(arrival_left_over),
      PROBE(named_barrier),
      PROBE(divergent_collective),
      PROBE(stuck_lanes),
      PROBE(shuffle_outside_its_mask),
      PROBE(overlapping_masks),
      PROBE(shuffle_from_absent_lane),
      PROBE(add_in_turn),
      PROBE(hand_on_what_others_did),
      PROBE(turn_within_a_warp),
      PROBE(turn_of_block_index),
      PROBE(passes_without_a_wait),
      PROBE(passes_a_turn_that_others_wait_for),
      PROBE(resets_a_counter),
      PROBE(reads_a_ticket_counter),
      PROBE(reads_a_turn),
      PROBE(overwrites_a_turn),
      PROBE(tickets_from_a_turn),
      PROBE(turn_past_the_end),
      PROBE(passes_a_turn_at_an_input),
      PROBE(pipeline_of_copies),
      PROBE(reverse_by_mbarrier),
      PROBE(copies_told_by_others),
      PROBE(waits_for_alternate_phases),
      PROBE(store_before_arrive_after_copies),
      PROBE(copy_after_arrive_after_copies),
      PROBE(arrive_with_copies_under_way),
      PROBE(mbarrier_that_nobody_initialised),
      PROBE(mbarrier_used_beside_its_init),
      PROBE(mbarrier_initialised_again),
      PROBE(mbarrier_of_numbers),
      PROBE(too_many_arrivals),
      PROBE(too_many_arrivals_after_copies),
      PROBE(too_few_arrivals),
      PROBE(arrivals_left_at_mbarrier),
      PROBE(copies_left_at_mbarrier),
      PROBE(waiter_two_phases_behind),
      PROBE(waiter_a_phase_early),
      PROBE(consumer_starts_at_parity_1),
      PROBE(reads_an_mbarrier),
      PROBE(copies_over_an_mbarrier),
      PROBE(mbarrier_in_written_bytes),
      PROBE(misaligned_mbarrier),
      PROBE(mbarrier_in_global_memory),
  };
#undef PROBE
  return all;
}

py::tuple run_probe(const std::string& name, const Array<float>& in, const Options& options, int num_blocks,
                    int num_threads, int shared_bytes) {
  CHECK(probes_by_name().contains(name), "no probe is called ", name);
  CHECK(in.size() == kProbeThreads, "a probe reads ", kProbeThreads, " floats, got ", in.size());
  Array<float> out(kProbeThreads);
  std::memset(out.mutable_data(), 0xff, size_t(out.nbytes()));
  Array<int> counters(kProbeThreads);
  std::memset(counters.mutable_data(), 0, size_t(counters.nbytes()));
  GlobalMemory memory;
  add_input(memory, "in", in);
  add_output(memory, "out", out);
  add_output(memory, "counters", counters);
  const LaunchShape shape = {.blocks = num_blocks, .threads = num_threads, .shared_bytes = shared_bytes};
  Report report;
  launcher(memory, options, report)(shape, probes_by_name().at(name),
                                    ProbeParams{in.data(), out.mutable_data(), counters.mutable_data()});
  return py::make_tuple(out, report);
}

// `operations` and `places` are [blocks, threads, steps].
Report run_program(const Array<int>& operations, const Array<int>& places, const Options& options) {
  CHECK(operations.ndim() == 3 && places.size() == operations.size(),
        "operations and places must be [blocks, threads, steps]");
  const Array<float> source(4);
  Array<float> words(kProgramWords);
  Array<int> counters(1 + kProgramTurns);
  std::memset(counters.mutable_data(), 0, size_t(counters.nbytes()));
  GlobalMemory memory;
  add_input(memory, "operations", operations);
  add_input(memory, "places", places);
  add_input(memory, "source", source);
  add_output(memory, "words", words);
  add_output(memory, "counters", counters);
  Report report;
  const LaunchShape shape = {
      .blocks = operations.shape(0), .threads = int(operations.shape(1)), .shared_bytes = int(sizeof(ProgramSmem))};
  launcher(memory, options, report)(shape, &program,
                                    ProgramParams{.operations = operations.data(),
                                                  .places = places.data(),
                                                  .source = reinterpret_cast<const Vector16*>(source.data()),
                                                  .words = words.mutable_data(),
                                                  .counters = counters.mutable_data(),
                                                  .num_threads = shape.threads,
                                                  .num_steps = int(operations.shape(2))});
  return report;
}

}  // namespace

void bind_probes(py::module_& m) {
  py::enum_<Operation>(m, "Operation")
      .value("nothing", Operation::kNothing)
      .value("load_word", Operation::kLoadWord)
      .value("store_word", Operation::kStoreWord)
      .value("load_row", Operation::kLoadRow)
      .value("store_row", Operation::kStoreRow)
      .value("copy_row", Operation::kCopyRow)
      .value("commit", Operation::kCommit)
      .value("wait_for_all", Operation::kWaitForAll)
      .value("wait_for_all_but_one", Operation::kWaitForAllButOne)
      .value("load_matrices", Operation::kLoadMatrices)
      .value("sync_warp", Operation::kSyncWarp)
      .value("sync_two_warps", Operation::kSyncTwoWarps)
      .value("arrive_two_warps", Operation::kArriveTwoWarps)
      .value("sync_block", Operation::kSyncBlock)
      .value("load_global", Operation::kLoadGlobal)
      .value("store_global", Operation::kStoreGlobal)
      .value("wait_for_turn", Operation::kWaitForTurn)
      .value("pass_turn", Operation::kPassTurn)
      .value("arrive_at_mbarrier", Operation::kArriveAtMBarrier)
      .value("arrive_after_copies", Operation::kArriveAfterCopies)
      .value("wait_at_mbarrier", Operation::kWaitAtMBarrier);
  m.def("program", &run_program, py::arg("operations"), py::arg("places"), py::arg("options"));
  m.def("probe", &run_probe, py::arg("name"), py::arg("inputs"), py::arg("options"), py::arg("num_blocks") = 1,
        py::arg("num_threads") = kProbeThreads, py::arg("shared_bytes") = kProbeThreads * 32 * int(sizeof(float)));
}

}  // namespace regrow::emulator

#pragma once

// A kernel whose threads do what they are told, so that random programs can be compared with a model of what is a race.
// What a block is told depends on its ticket.
#include "platform/mbarrier.h"
#include "platform/memory.h"
#include "platform/sync.h"
#include "platform/turns.h"
#include "tile/copy.h"
#include "tile/mma.h"

namespace regrow {

enum class Operation : int {
  kNothing,
  kLoadWord,
  kStoreWord,
  kLoadRow,
  kStoreRow,
  kCopyRow,
  kCommit,
  kWaitForAll,
  kWaitForAllButOne,
  kLoadMatrices,  // by a whole warp, each lane giving its row
  kSyncWarp,
  kSyncTwoWarps,    // by one or both of two warps, at the barrier of that number
  kArriveTwoWarps,  // by the other
  kSyncBlock,
  kLoadGlobal,
  kStoreGlobal,
  kWaitForTurn,
  kPassTurn,
  kArriveAtMBarrier,
  kArriveAfterCopies,
  kWaitAtMBarrier,
};

struct ProgramParams {
  const int* operations;  // [tickets, num_threads, num_steps]
  const int* places;      // [tickets, num_threads, num_steps]: word, row, barrier, turn or mbarrier that it takes
  const Vector16* source;
  float* words;   // [kProgramWords]
  int* counters;  // [1 + kProgramTurns] zeros: tickets, and turns that are passed once
  int num_threads;
  int num_steps;
};

constexpr int kProgramRows = 2, kProgramWords = 4, kProgramTurns = 64;
constexpr int kProgramMBarriers = 40;  // for two arrivals, once

struct ProgramSmem {
  union {
    SharedArray<float, kProgramRows * 4> words;
    SharedArray<Vector16, kProgramRows> rows;
  };
  MBarrier mbarriers[kProgramMBarriers];
  SharedArray<int, 1> ticket;
};

GLOBAL void program(const ProgramParams p) {
  SHARED(ProgramSmem, smem);
  if (thread_index() == 0) smem.ticket.store(0, take_ticket(p.counters));
  if (thread_index() < kProgramMBarriers) smem.mbarriers[thread_index()].init(2);
  sync_block();
  const int first = (smem.ticket.load(0) * p.num_threads + thread_index()) * p.num_steps;
  for (int step = 0; step < p.num_steps; ++step) {
    const int place = load_global(p.places + first + step);
    uint32_t matrices[4];
    switch (Operation(load_global(p.operations + first + step))) {
      case Operation::kNothing:
        break;
      case Operation::kLoadWord:
        smem.words.load(place);
        break;
      case Operation::kStoreWord:
        smem.words.store(place, 1);
        break;
      case Operation::kLoadRow:
        smem.rows.load(place);
        break;
      case Operation::kStoreRow:
        smem.rows.store(place, {});
        break;
      case Operation::kCopyRow:
        copy_async16(smem.rows.data + place, p.source, true);
        break;
      case Operation::kCommit:
        commit_copies();
        break;
      case Operation::kWaitForAll:
        wait_copies<0>();
        break;
      case Operation::kWaitForAllButOne:
        wait_copies<1>();
        break;
      case Operation::kLoadMatrices:
        load_matrix_x4<false>(reinterpret_cast<const bf16*>(smem.rows.address(0)), 8 * place, matrices[0], matrices[1],
                              matrices[2], matrices[3]);
        break;
      case Operation::kSyncWarp:
        sync_warp();
        break;
      case Operation::kSyncTwoWarps:
        sync_named(place, 64);
        break;
      case Operation::kArriveTwoWarps:
        arrive_named(place, 64);
        break;
      case Operation::kSyncBlock:
        sync_block();
        break;
      case Operation::kLoadGlobal:
        load_global(p.words + place);
        break;
      case Operation::kStoreGlobal:
        store_global(p.words + place, 1.0f);
        break;
      case Operation::kWaitForTurn:
        wait_for_turn(p.counters + 1 + place, 1);
        break;
      case Operation::kPassTurn:
        pass_turn(p.counters + 1 + place, 1);
        break;
      case Operation::kArriveAtMBarrier:
        smem.mbarriers[place].arrive();
        break;
      case Operation::kArriveAfterCopies:
        smem.mbarriers[place].arrive_after_copies();
        break;
      case Operation::kWaitAtMBarrier:
        smem.mbarriers[place].wait(0);
        break;
    }
  }
}

}  // namespace regrow

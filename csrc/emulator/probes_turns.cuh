#pragma once

// Small kernels that prove turns between blocks, as probes.cuh proves the rest. `counters` are zeros.
#include "emulator/probes.cuh"
#include "platform/turns.h"

namespace regrow {

struct TurnSmem {
  alignas(16) SharedArray<float, kProbeThreads> terms;
  SharedArray<int, 1> ticket;
};

namespace probes {

// Blocks add to each half of `out` in the order of their tickets, and come to the halves in different order. Thread 0
// waits and passes, warp 1 adds.
GLOBAL void add_in_turn(const ProbeParams p) {
  SHARED(TurnSmem, smem);
  const int thread = thread_index();
  if (thread == 0) smem.ticket.store(0, take_ticket(p.counters));
  if (thread < 16) copy_async16(smem.terms.data + 4 * thread, p.in + 4 * thread, true);
  commit_copies();
  wait_copies<0>();
  sync_block();
  const int ticket = smem.ticket.load(0);
  for (int i = 0; i < 2; ++i) {
    const int half = (ticket + i) % 2, at = 32 * half + lane_index();
    int* turn = p.counters + 1 + half;
    if (thread == 0) wait_for_turn(turn, ticket);
    sync_block();
    if (warp_index() == 1) {
      const float before = ticket == 0 ? 0.0f : load_global(p.out + at);
      store_global(p.out + at, before / 3 + smem.terms.load((at + ticket) % kProbeThreads));
    }
    sync_block();
    if (thread == 0) pass_turn(turn, ticket + 1);
  }
}

// Each block waits for the one before it; the last one reads what all of them wrote, and knows of most of it through
// others only.
GLOBAL void hand_on_what_others_did(const ProbeParams p) {
  if (thread_index() != 0) return;
  const int ticket = take_ticket(p.counters);
  if (ticket > 0) wait_for_turn(p.counters + ticket, 1);
  store_global(p.out + ticket, load_global(p.in + ticket));
  float sum = 0;
  for (int i = 0; ticket == 3 && i <= ticket; ++i) sum += load_global(p.out + i);
  if (ticket == 3) store_global(p.out + 4, sum);
  pass_turn(p.counters + ticket + 1, 1);
}

// The shuffle makes thread 0 come first and orders nothing; the turn does.
GLOBAL void turn_within_a_warp(const ProbeParams p) {
  if (thread_index() == 0) {
    store_global(p.out, load_global(p.in));
    pass_turn(p.counters, 1);
  }
  shuffle(0, 0);
  if (thread_index() != 1) return;
  wait_for_turn(p.counters, 1);
  store_global(p.out + 1, load_global(p.out));
}

// Right only where blocks happen to start in the order of their index.
GLOBAL void turn_of_block_index(const ProbeParams p) {
  if (thread_index() != 0) return;
  wait_for_turn(p.counters + 2, int(block_index()));
  pass_turn(p.counters + 2, int(block_index()) + 1);
}

GLOBAL void passes_without_a_wait(const ProbeParams p) {
  if (thread_index() == 0) pass_turn(p.counters, int(block_index()));
}

// Ticket 1 may still be waiting when ticket 2 ends the turn.
GLOBAL void passes_a_turn_that_others_wait_for(const ProbeParams p) {
  if (thread_index() != 0) return;
  const int ticket = take_ticket(p.counters);
  if (ticket > 0) wait_for_turn(p.counters + 1, 1);
  if (ticket != 1) pass_turn(p.counters + 1, ticket + 1);
}

GLOBAL void resets_a_counter(const ProbeParams p) {
  if (thread_index() != 0) return;
  store_global(p.counters, 0);
  take_ticket(p.counters);
}

GLOBAL void reads_a_ticket_counter(const ProbeParams p) {
  if (thread_index() != 0) return;
  take_ticket(p.counters);
  load_global(p.counters);
}

GLOBAL void reads_a_turn(const ProbeParams p) {
  if (thread_index() != 0) return;
  load_global(p.counters);
  pass_turn(p.counters, 1);
}

GLOBAL void overwrites_a_turn(const ProbeParams p) {
  if (thread_index() != 0) return;
  pass_turn(p.counters, 1);
  store_global(p.counters, 0);
}

GLOBAL void tickets_from_a_turn(const ProbeParams p) {
  if (thread_index() != 0) return;
  pass_turn(p.counters, 1);
  take_ticket(p.counters);
}

GLOBAL void turn_past_the_end(const ProbeParams p) { wait_for_turn(p.counters + kProbeThreads, 0); }

GLOBAL void passes_a_turn_at_an_input(const ProbeParams p) {
  pass_turn(reinterpret_cast<int*>(const_cast<float*>(p.in)), 1);
}

}  // namespace probes
}  // namespace regrow

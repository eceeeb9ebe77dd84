// Every op of regrow on one page. Shapes:
//   T axis tokens, Tq queries, Tk keys, Hq / Hkv query / KV heads, D / Dv head dims of Q and K / of V, P partials,
//   R rows of hidden states or logits, V vocabulary, N predicted tokens.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(regrow, m) {
  // Attention over one rectangle: out [Tq,Hq,Dv], lse [Hq,Tq] (natural log; fp32, fp64 for fp64).
  m.def(
      "tree_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor subtree_end, Tensor position_ids, Tensor plan, "
      "Tensor? query_index, SymInt query_start, SymInt key_start, float scale, SymInt? window, float? softcap, "
      "Tensor? sinks, bool partial) -> (Tensor out, Tensor lse)");
  // Gradients in the dtypes of their inputs; dsinks is [0] without sinks.
  m.def(
      "tree_attention_bwd(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor subtree_end, Tensor position_ids, Tensor plan, Tensor? query_index, SymInt query_start, "
      "SymInt key_start, float scale, SymInt? window, float? softcap, Tensor? sinks) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)");
  // The same, added into fp32 (fp64) buffers of the caller. A gradient without a buffer is not computed.
  m.def(
      "tree_attention_bwd_accum(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor subtree_end, Tensor position_ids, Tensor plan, Tensor? query_index, SymInt query_start, "
      "SymInt key_start, float scale, SymInt? window, float? softcap, Tensor? sinks, "
      "Tensor(a!)? dq_accum, Tensor(b!)? dk_accum, Tensor(c!)? dv_accum) -> Tensor dsinks");

  // outs [P,Tq,Hq,Dv] and lses [P,Hq,Tq] of disjoint key sets, merged in order; the sink counts once.
  m.def("lse_merge(Tensor outs, Tensor lses, Tensor? sinks) -> (Tensor out, Tensor lse)");
  m.def(
      "lse_merge_bwd(Tensor dout, Tensor? dlse, Tensor outs, Tensor lses, Tensor? sinks, Tensor out, Tensor lse) "
      "-> (Tensor douts, Tensor dlses, Tensor dsinks)");

  // out[i] = src[index[i]]; rows of any shape.
  m.def("replay_gather(Tensor src, Tensor index) -> Tensor");
  m.def("replay_gather_out(Tensor src, Tensor index, Tensor(a!) out) -> ()");
  // out[r] = sum of src[i] over index[i] == r, in order of i; fp32 sums (fp64 for fp64).
  m.def("replay_scatter(Tensor src, Tensor index, SymInt num_rows) -> Tensor");
  m.def("replay_scatter_out(Tensor src, Tensor index, Tensor(a!) out) -> ()");

  // input [...,K] weight [N,K]^T + bias [N] -> [...,N], fast for few rows; sums fp32 (fp64 for fp64); no gradient.
  m.def("skinny_linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  // A language model's head, out = hidden [R,H] weight [V,H]^T; sums and results fp32 (fp64 for fp64). few_rows: by
  // the products of skinny_linear, on the CPU.
  m.def("head_logits_out(Tensor hidden, Tensor weight, Tensor(a!) out, bool few_rows=False) -> ()");
  // dhidden [R,H] is written, dweight [V,H] added to; each fp32 (fp64), or None where it is not wanted.
  m.def(
      "head_logits_bwd(Tensor dlogits, Tensor hidden, Tensor weight, Tensor(a!)? dhidden, Tensor(b!)? dweight) "
      "-> ()");
  // out += a b, summed in the dtype of out; torch's product, of which head_logits_bwd on CUDA is made.
  m.def("add_matmul_(Tensor(a!) out, Tensor a, Tensor b) -> ()");
  // Rows of logits [R,V], x = softcap(logits) / temperature: lse (fp64, whatever the logits) and entropy (nats)
  // of each row.
  m.def("logits_row_stats(Tensor logits, float temperature, float? softcap) -> (Tensor lse, Tensor entropy)");
  // logp[n] = x[target_row[n], target_token[n]] - lse[target_row[n]].
  m.def(
      "logits_pick(Tensor logits, Tensor lse, Tensor target_row, Tensor target_token, float temperature, "
      "float? softcap) -> Tensor");
  // Overwrites logits with their gradient. Targets sorted by row, then token; row r owns [row_start[r], row_start[r +
  // 1]).
  m.def(
      "logits_row_grad_(Tensor(a!) logits, Tensor lse, Tensor entropy, Tensor row_start, Tensor target_token, "
      "Tensor dlogp, Tensor? dentropy, float temperature, float? softcap) -> ()");

  // Log-probabilities of target tokens, logp [N] and entropy [R], without logits [R,V]; fp32 (fp64 for fp64).
  m.def(
      "row_logprobs(Tensor hidden, Tensor weight, Tensor target_row, Tensor target_token, float temperature, "
      "float? softcap) -> (Tensor logp, Tensor entropy)");
  // A gradient that is not needed is [0].
  m.def(
      "row_logprobs_bwd(Tensor dlogp, Tensor? dentropy, Tensor hidden, Tensor weight, Tensor target_row, "
      "Tensor target_token, float temperature, float? softcap, bool need_hidden, bool need_weight) "
      "-> (Tensor dhidden, Tensor dweight)");
  // The same over a tree: logp [T] and entropy [T] of the row that predicts each token, 0 at roots (parent -1).
  m.def(
      "tree_logprobs(Tensor hidden, Tensor weight, Tensor parent_index, Tensor tokens, float temperature, "
      "float? softcap) -> (Tensor logp, Tensor entropy)");
  m.def(
      "tree_logprobs_bwd(Tensor dlogp, Tensor? dentropy, Tensor hidden, Tensor weight, Tensor parent_index, "
      "Tensor tokens, float temperature, float? softcap, bool need_hidden, bool need_weight) "
      "-> (Tensor dhidden, Tensor dweight)");

  // The instruction set in use; a name switches to it (for tests), "" only asks.
  m.def("cpu_isa(str name) -> str");
  // Multiply-adds in registers on every thread, operands as for this tensor's dtype: returns the operations done.
  m.def("register_loop(Tensor like, int iterations) -> int");
}

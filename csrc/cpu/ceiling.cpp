#include "cpu/ceiling.h"

#include "cpu/operand.h"

REGROW_BEGIN_ISA
namespace {

// The compiler's letter for a vector register, or memory where it has none that we know.
#if defined(__x86_64__)
#define REGROW_IN_REGISTER "+v"
#elif defined(__aarch64__)
#define REGROW_IN_REGISTER "+w"
#else
#define REGROW_IN_REGISTER "+m"
#endif

// Independent sums that hide the latency of a multiply-add and still fit the registers.
constexpr int kSums = kVectorBytes == 64 ? 16 : 10;

template <class P>
int64_t loop(int64_t iterations) {
  using Acc = typename P::Acc;
  alignas(kVectorBytes) typename P::Element zeros[kPanel<P>] = {};
  Vector<Acc> sums[kSums] = {};
  for (int64_t i = 0; i < iterations; ++i) {
    REGROW_UNROLL
    for (int s = 0; s < kSums; ++s) {
      sums[s] = P::multiply_add(sums[s], zeros[0], zeros);
      asm volatile("" : REGROW_IN_REGISTER(sums[s]));  // each iteration is done, in its register
    }
  }
  return 2 * iterations * kSums * kLanes<Acc> * P::kPack;
}

}  // namespace

int64_t register_loop(DType dtype, int64_t iterations) {
  switch (dtype) {
    case DType::kFloat64:
      return loop<Fp64>(iterations);
    case DType::kBFloat16:
      return loop<Bf16Operand>(iterations);
    default:
      return loop<Fp32>(iterations);
  }
}

REGROW_END_ISA

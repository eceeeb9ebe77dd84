#pragma once

namespace regrow {

enum class DType { kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kInt32, kInt16, kInt8, kUInt8 };

inline const char* name(DType dtype) {
  constexpr const char* kNames[] = {"float64", "float32", "bfloat16", "float16", "int64",
                                    "int32",   "int16",   "int8",     "uint8"};
  return kNames[int(dtype)];
}

}  // namespace regrow

#include "types.h"

namespace spark_hvd {

int64_t ElementSize(int32_t dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
    case HVD_INT32:
      return 4;
    case HVD_FLOAT64:
    case HVD_INT64:
      return 8;
    case HVD_INT16:
    case HVD_FLOAT16:
    case HVD_BFLOAT16:
      return 2;
    case HVD_UINT8:
    case HVD_INT8:
    case HVD_BOOL:
      return 1;
    default:
      return 0;
  }
}

bool IsFloat(int32_t dtype) {
  return dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64 || dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16;
}

const char* DtypeName(int32_t dtype) {
  constexpr const char* kNames[] = {"float32", "float64", "uint8",   "int32",    "int64",
                                    "int8",    "int16",   "float16", "bfloat16", "bool"};
  return dtype >= 0 && dtype <= HVD_BOOL ? kNames[dtype] : "unknown dtype";
}

const char* OpName(int32_t op) {
  constexpr const char* kNames[] = {"sum", "average", "min", "max", "product", "adasum"};
  return op >= 0 && op <= HVD_ADASUM ? kNames[op] : "unknown op";
}

const char* KindName(Kind kind) {
  constexpr const char* kNames[] = {"allreduce", "broadcast",     "barrier", "allgather",
                                    "alltoall",  "reducescatter", "join",    "exchange"};
  return kNames[static_cast<int>(kind)];
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  if (shape.size() == 1) text += ",";
  return text + ")";
}

int64_t Request::count() const {
  if (kind == Kind::kBarrier) return 0;
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace spark_hvd

#include "types.h"

#include <algorithm>
#include <cstdlib>
#include <new>

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
  if (kind == Kind::kBarrier || kind == Kind::kJoin || kind == Kind::kExchange) return 0;
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

int64_t Request::row_count() const {
  int64_t product = 1;
  for (size_t i = 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

bool Request::SameAs(const Request& other) const {
  if (kind != other.kind || dtype != other.dtype || op != other.op || root != other.root ||
      scaling.prescale != other.scaling.prescale || scaling.postscale != other.scaling.postscale ||
      group != other.group || group_size != other.group_size || shape.size() != other.shape.size()) {
    return false;
  }
  const size_t first = kind == Kind::kAllgather || kind == Kind::kAlltoall ? 1 : 0;
  for (size_t i = first; i < shape.size(); ++i) {
    if (shape[i] != other.shape[i]) return false;
  }
  return true;
}

void Output::Reserve(int64_t size) {
  constexpr int64_t kLine = 64;
  const int64_t rounded = std::max<int64_t>((size + kLine - 1) / kLine, 1) * kLine;
  memory = {static_cast<char*>(std::aligned_alloc(kLine, static_cast<size_t>(rounded))),
            [](char* pointer) { std::free(pointer); }};
  if (!memory) throw std::bad_alloc();
  bytes = size;
}

}  // namespace spark_hvd

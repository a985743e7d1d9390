// The products of a block type with experts: each type has a file, and an image of its own, of which a model needs few.
#pragma once

#include "experts_matmul.cuh"
#include "experts_matvec.cuh"
#include "experts_matvec_int8.cuh"
#include "experts_tiles.cuh"

// Those with F32 activations, for few rows and for many.
#define F32_EXPERTS(TYPE, NAME)    \
  EXPERT_MATVEC(TYPE, NAME, 4, 1) \
  EXPERT_MATVEC(TYPE, NAME, 2, 4) \
  EXPERT_MATMUL(TYPE, NAME)

// Those in half precision, for many rows.
#define HALF_EXPERTS(TYPE, NAME)                   \
  EXPERT_MATMUL_HALF(TYPE, NAME, 64, 128, 2, 4) \
  EXPERT_MATMUL_HALF(TYPE, NAME, 32, 64, 1, 4)

// Those with 8-bit activations, for few rows and for many.
#define INT8_EXPERTS(TYPE, NAME)                   \
  EXPERT_MATVEC_INT8(TYPE, NAME, 1)              \
  EXPERT_MATVEC_INT8(TYPE, NAME, 4)              \
  EXPERT_MATMUL_INT8(TYPE, NAME, 64, 128, 2, 4) \
  EXPERT_MATMUL_INT8(TYPE, NAME, 32, 64, 1, 4)

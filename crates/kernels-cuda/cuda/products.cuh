// The products of a block type: each type has a file, and an image of its own, of which a model needs few.
#pragma once

#include "matmul_f32.cuh"
#include "matmul_half.cuh"
#include "matmul_int8.cuh"
#include "matvec.cuh"
#include "matvec_int8.cuh"
#include "matvec_levels.cuh"
#include "matvec_parts.cuh"

// Those with F32 activations, for few rows and for many.
#define F32_PRODUCTS(TYPE, NAME) \
  MATVEC(TYPE, NAME, 4, 1)       \
  MATVEC(TYPE, NAME, 2, 4)       \
  MATMUL_F32(TYPE, NAME)

// Those in half precision, for many rows.
#define HALF_PRODUCTS(TYPE, NAME)             \
  MATMUL_HALF(TYPE, NAME, 128, 128, 2, 4, 64) \
  MATMUL_HALF(TYPE, NAME, 32, 32, 2, 2, 128)

// Those with 8-bit activations, for few rows, also with a gated activation behind them, and for prompts; and for many rows of
// decode steps.
#define INT8_PRODUCTS(TYPE, NAME)                                     \
  MATVEC_INT8(TYPE, NAME, 1)                                          \
  MATVEC_INT8(TYPE, NAME, 2)                                          \
  MATVEC_INT8(TYPE, NAME, 4)                                          \
  GATED_INT8(TYPE, NAME, 1)                                           \
  GATED_INT8(TYPE, NAME, 2)                                           \
  GATED_INT8(TYPE, NAME, 4)                                           \
  TILES_INT8(matmul_int8_##NAME##_128, TYPE, 128, 128, 2, 4, 1, 64)   \
  TILES_INT8(matmul_int8_##NAME##_32, TYPE, 32, 32, 2, 2, 1, 256)

// Those of levels with activations in BF16, for all rows of decode steps.
#define LEVELS_PRODUCTS(TYPE, NAME)        \
  MATVEC_LEVELS(TYPE, NAME, 1, 1, 2)       \
  MATVEC_LEVELS(TYPE, NAME, 2, 1, 2)       \
  MATVEC_LEVELS(TYPE, NAME, 2, 4, 1)       \
  GATED_LEVELS(TYPE, NAME)                 \
  MATMUL_LEVELS(TYPE, NAME, 64, 64, 4, 2)  \
  MATMUL_LEVELS(TYPE, NAME, 128, 64, 4, 2)

#define INT8_DECODE_TILES(TYPE, NAME) TILES_INT8(matvec_int8_##NAME##_32, TYPE, 32, 32, 1, 1, 8, 256)

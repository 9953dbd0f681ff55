#pragma once
// Table of contents: every operation on a device, and the letters that all of them share.
//
//   B batch (sequences held at once)   T local tokens of a sequence   S global tokens of a sequence   C model width
//   H query heads   G kv heads   D head size   E value columns (D, or 2D with TAPE)   F MLP width   V vocabulary
//   W ring size     P last table position (npos - 1)   I width of TAPE's position MLP
//
// Rules. An operation checks shapes and devices, then runs the file of its device (`pick`): x_ref.cpp, x_cpu.cpp or x_cuda.cu.
// In a build without CUDA the entries of the latter are those of ops_cuda_absent.cpp, which throw.
// Each argument is named in the comment as "reads", "overwrites" or "adds to"; without a word it is read.
// Values are f32 or bf16 on `cpu` and `cuda`, f32 or f64 on `ref`. "Wide" is the type of sums, positions and gradients of weights
// beside them (tensor.h): f32 beside bf16. Arithmetic is f32; a bf16 result is rounded once, when it is stored. The rank's threads
// (threads.h) share the work, and their number changes no bit.
// On `cuda` an operation is queued on the thread's stream (stream_cuda.h) and may return before it is done; one that returns a
// number waits for it. What is wrong in an array of integers (a token id beyond the vocabulary) is an exception on the other
// devices; on `cuda`, where the host does not look into arrays, it makes NaNs where the operation's file says so.
// Rows of tokens are the first axis; results of a row never depend on which other rows are present (bit for bit), except
// where rows are summed, and except products on `cuda`, where calls of the same shapes give the same bits (docs/decisions.md).
// Gradients are called d + name and are gradients of a *sum* over tokens; nobody divides here.

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention_tile.h"
#include "kernels/bias.h"
#include "kernels/block_pool.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/global_norm.h"
#include "kernels/linear.h"
#include "kernels/position_mlp.h"
#include "kernels/rmsnorm.h"
#include "kernels/rotary.h"

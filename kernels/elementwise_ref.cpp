#include "kernels/elementwise.h"

#include <cmath>
#include <cstring>

#include "kernels/operands.h"

namespace capstan::kernels {

namespace {

void check_group(std::string_view operation, const View& grouped, const View& heads) {
  const Operands operands(operation, heads);
  const std::int64_t T = heads.dim(0), H = heads.dim(1), D = heads.dim(-1), G = grouped.dim(1);
  operands.check("x", heads, {T, H, D});
  operands.check("y", grouped, {T, G, D});
  CAPSTAN_CHECK(G > 0 && H % G == 0, "{} heads in {} groups", H, G);
}

/// part and whole agree in all but the last axis, and [begin, begin + width) lies in whole's. Any type: columns are only moved.
void check_columns(const View& part, const View& whole, std::int64_t begin) {
  CAPSTAN_CHECK(part && whole, "an operand is absent");
  CAPSTAN_CHECK(part.type() == whole.type() && part.device() == whole.device(), "columns of {} on {} and of {} on {}",
                name_of(part.type()), name_of(part.device()), name_of(whole.type()), name_of(whole.device()));
  bool same_rows = part.shape().rank() == whole.shape().rank() && part.shape().rank() > 0;
  for (int axis = 0; same_rows && axis + 1 < part.shape().rank(); ++axis) same_rows = part.dim(axis) == whole.dim(axis);
  CAPSTAN_CHECK(same_rows && begin >= 0 && part.dim(-1) <= whole.dim(-1) - begin, "columns {} of {} from {}",
                part.shape().text(), whole.shape().text(), begin);
}

}  // namespace

void add(const View& y, const View& x) {
  CAPSTAN_CHECK(x && y && y.elements() == x.elements(), "add {} to {}", x.shape().text(), y.shape().text());
  Operands("add", y).check_any_width("x", x, x.shape());
  pick(y, ref::add, cpu::add, cuda::add)(y, x);
}

void convert(const View& y, const View& x) {
  CAPSTAN_CHECK(x && y && y.elements() == x.elements(), "convert {} into {}", x.shape().text(), y.shape().text());
  const Operands from("convert", x), to("convert", y);
  from.check("y", y, y.shape(), y.type());
  pick(y, ref::convert, cpu::convert, cuda::convert)(y, x);
}

void scale(const View& y, double factor) {
  const Operands operands("scale", y);
  pick(y, ref::scale, cpu::scale, cuda::scale)(y, factor);
}

void group_sum(const View& y, const View& x, double factor) {
  check_group("group_sum", y, x);
  pick(x, ref::group_sum, cpu::group_sum, cuda::group_sum)(y, x, factor);
}

void group_spread(const View& x, const View& y, double factor) {
  check_group("group_spread", y, x);
  pick(x, ref::group_spread, cpu::group_spread, cuda::group_spread)(x, y, factor);
}

void take_columns(const View& part, const View& whole, std::int64_t begin) {
  check_columns(part, whole, begin);
  pick(part, ref::take_columns, cpu::take_columns, cuda::take_columns)(part, whole, begin);
}

void put_columns(const View& whole, const View& part, std::int64_t begin) {
  check_columns(part, whole, begin);
  pick(part, ref::put_columns, cpu::put_columns, cuda::put_columns)(whole, part, begin);
}

bool all_finite(const View& x) {
  const Operands operands("all_finite", x);
  return pick(x, ref::all_finite, cpu::all_finite, cuda::all_finite)(x);
}

namespace ref {

void add(const View& y, const View& x) {
  with_real(y.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < y.elements(); ++i) y.as<Real>()[i] += x.as<Real>()[i];
  });
}

void convert(const View& y, const View& x) {
  with_real(y.type(), [&](auto to) {
    with_real(x.type(), [&](auto from) {
      for (std::int64_t i = 0; i < y.elements(); ++i)
        y.as<decltype(to)>()[i] = static_cast<decltype(to)>(x.as<decltype(from)>()[i]);
    });
  });
}

void scale(const View& y, double factor) {
  with_real(y.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < y.elements(); ++i) y.as<Real>()[i] *= static_cast<Real>(factor);
  });
}

// y[t, g, d] = factor Σ_{h in g} x[t, h, d]
void group_sum(const View& y, const View& x, double factor) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t TG = y.dim(0) * y.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
    for (std::int64_t tg = 0; tg < TG; ++tg) {
      for (std::int64_t d = 0; d < D; ++d) {
        double sum = 0;
        for (std::int64_t h = 0; h < group; ++h) sum += static_cast<double>(x.as<Real>()[(tg * group + h) * D + d]);
        y.as<Real>()[tg * D + d] = static_cast<Real>(factor * sum);
      }
    }
  });
}

// Of y[t, g] = factor Σ_{h in g} x[t, h]:  x[t, h, d] = factor y[t, g(h), d]
void group_spread(const View& x, const View& y, double factor) {
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    const std::int64_t TH = x.dim(0) * x.dim(1), group = x.dim(1) / y.dim(1), D = x.dim(2);
    for (std::int64_t th = 0; th < TH; ++th)
      for (std::int64_t d = 0; d < D; ++d)
        x.as<Real>()[th * D + d] = static_cast<Real>(factor) * y.as<Real>()[th / group * D + d];
  });
}

namespace {

/// Calls move(part_row, whole_columns, bytes) for each row.
template <class Move> void for_each_row(const View& part, const View& whole, std::int64_t begin, Move move) {
  if (part.elements() == 0) return;
  const std::int64_t size = size_of(part.type()), width = part.dim(-1) * size, pitch = whole.dim(-1) * size;
  char* at_part = static_cast<char*>(part.data());
  char* at_whole = static_cast<char*>(whole.data()) + begin * size;
  for (std::int64_t row = 0; row < part.elements() / part.dim(-1); ++row)
    move(at_part + row * width, at_whole + row * pitch, static_cast<std::size_t>(width));
}

}  // namespace

void take_columns(const View& part, const View& whole, std::int64_t begin) {
  for_each_row(part, whole, begin, [](char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); });
}

void put_columns(const View& whole, const View& part, std::int64_t begin) {
  for_each_row(part, whole, begin, [](const char* from, char* to, std::size_t bytes) { std::memcpy(to, from, bytes); });
}

bool all_finite(const View& x) {
  bool finite = true;
  with_real(x.type(), [&](auto real) {
    using Real = decltype(real);
    for (std::int64_t i = 0; i < x.elements(); ++i) finite = finite && std::isfinite(x.as<Real>()[i]);
  });
  return finite;
}

}  // namespace ref

}  // namespace capstan::kernels

#include "framework/parameters.h"

#include <fnmatch.h>

#include <algorithm>

#include "framework/config.h"
#include "framework/random.h"
#include "kernels/converted.h"
#include "kernels/host_view.h"
#include "kernels/memory.h"

namespace capstan::framework {

Parameter& Parameters::declare(const std::string& name, Shape shape, Init init) {
  CAPSTAN_CHECK(!find(name), "parameter {} declared twice", name);
  Parameter parameter;
  parameter.name = name;
  parameter.shape = shape;
  parameter.init = init;
  parameter.decay = shape.rank() == 2;
  all_.push_back(std::move(parameter));
  return all_.back();
}

void Parameters::allocate(Device device, DType type, bool with_gradients,
                          const std::function<bool(const std::string&)>& trainable, int ranks) {
  std::int64_t frozen_elements = 0;
  trainable_elements_ = 0;
  for (Parameter& p : all_) {
    p.trainable = trainable(p.name);
    std::int64_t& used = p.trainable ? trainable_elements_ : frozen_elements;
    p.offset = used;
    used += p.shape.elements();
  }
  const std::int64_t padded = (trainable_elements_ + ranks - 1) / ranks * ranks;
  {
    const kernels::MemoryPurpose purpose("parameters");
    values_ = Tensor({padded}, type, device);
    frozen_ = Tensor({frozen_elements}, type, device);
  }
  if (with_gradients) {
    const kernels::MemoryPurpose purpose("gradients");
    gradients_ = Tensor({padded}, type, device);
  }
  for (Parameter& p : all_) {
    const std::int64_t end = p.offset + p.shape.elements();
    p.grad = p.trainable && with_gradients ? gradients_.view().rows(p.offset, end).reshape(p.shape) : View();
  }
  place_values();
}

/// Points every value at its place in the buffers that there are.
void Parameters::place_values() {
  for (Parameter& p : all_) {
    const bool is_wide = is_narrow() && p.wide_offset >= 0;
    const Tensor& buffer = is_wide ? wide_ : p.trainable ? values_ : frozen_;
    const std::int64_t begin = is_wide ? p.wide_offset : p.offset;
    p.value = buffer.view().rows(begin, begin + p.shape.elements()).reshape(p.shape);
  }
}

void Parameters::narrow() {
  CAPSTAN_CHECK(values_.view().type() == DType::f32, "values of {} made bf16", kernels::name_of(values_.view().type()));
  const kernels::MemoryPurpose purpose("parameters");
  std::int64_t wide_elements = 0;
  for (const bool trainable : {true, false}) {
    for (Parameter& p : all_) {
      if (p.trainable != trainable || !is_of_position(p.name)) continue;
      p.wide_offset = wide_elements;
      wide_elements += p.shape.elements();
    }
    if (trainable) wide_trainable_elements_ = wide_elements;
  }
  wide_ = Tensor({wide_elements}, DType::f32, values_.view().device());
  for (const Parameter& p : all_)
    if (p.wide_offset >= 0) wide_.view().rows(p.wide_offset, p.wide_offset + p.shape.elements()).copy_from(p.value);
  for (Tensor* buffer : {&values_, &frozen_}) *buffer = kernels::converted(*buffer, DType::bf16);
  place_values();
}

void Parameters::widen() {
  if (!is_narrow()) return;
  const kernels::MemoryPurpose purpose("parameters");
  for (Tensor* buffer : {&values_, &frozen_}) *buffer = kernels::converted(*buffer, DType::f32);
  place_values();
  for (const Parameter& p : all_)
    if (p.wide_offset >= 0) p.value.copy_from(wide_.view().rows(p.wide_offset, p.wide_offset + p.shape.elements()));
  wide_ = {};
}

void Parameters::initialise(std::uint64_t seed, double std_deviation) {
  for (Parameter& p : all_)
    kernels::update_on_host(p.value, [&](const View& host) {
      kernels::with_real(host.type(), [&](auto real) {
        using Real = decltype(real);
        Real* value = host.as<Real>();
        const std::uint64_t stream = stream_of(p.name);
        for (std::int64_t i = 0; i < host.elements(); ++i)
          value[i] = p.init == Init::zero    ? Real(0)
                     : p.init == Init::one   ? Real(1)
                     : p.init == Init::given ? Real(p.given.at(std::size_t(i)))
                                             : Real(std_deviation * random_normal(seed, stream, std::uint64_t(i)));
      });
    });
}

Parameter* Parameters::find(const std::string& name) {
  for (Parameter& p : all_)
    if (p.name == name) return &p;
  return nullptr;
}

std::int64_t Parameters::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : all_) sum += p.shape.elements();
  return sum;
}

bool is_of_position(const std::string& name) { return name.find(".position.") != std::string::npos; }

bool is_of_adapter(const std::string& name) { return name.ends_with(".lora_A") || name.ends_with(".lora_B"); }

bool matches_any(const std::string& name, const std::string& patterns) {
  for (const std::string& pattern : split_list(patterns))
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  return false;
}

ShardRange shard_range(std::int64_t elements, int rank, int ranks) {
  const std::int64_t piece = (elements + ranks - 1) / ranks;
  return {std::min(elements, rank * piece), std::min(elements, (rank + 1) * piece)};
}

}  // namespace capstan::framework

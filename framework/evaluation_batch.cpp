#include "framework/evaluation_batch.h"

#include "kernels/host_view.h"

namespace capstan::framework {

std::vector<std::int32_t> read_for_model(const TokenFile& data, const Model& model, std::int64_t begin,
                                         std::int64_t end) {
  std::vector<std::int32_t> ids = data.read(begin, end);
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= model.config().vocabulary)
      fail(ExitCode::bad_data,
           "{}: token {} is id {}; the model knows ids 0 to {}; prepare the file with the model's tokenizer",
           data.path(), begin + std::int64_t(i), ids[i], model.config().vocabulary - 1);
  return ids;
}

Batch evaluation_batch(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                       const std::vector<std::int64_t>& index, std::int64_t declared_length, Device device) {
  const Device filled = kernels::filled_on(device);
  const Shape shape{1, std::int64_t(index.size())};
  Batch batch{std::int64_t(tokens.size()),       declared_length,
              Tensor(shape, DType::i32, filled), Tensor(shape, DType::i32, filled),
              Tensor(shape, DType::i64, filled), Tensor(shape, DType::i64, filled),
              Tensor(shape, DType::i64, filled), {}};
  for (std::size_t t = 0; t < index.size(); ++t) {
    const std::int64_t at = index[t];
    batch.tokens.as<std::int32_t>()[t] = tokens[static_cast<std::size_t>(at)];
    batch.targets.as<std::int32_t>()[t] = targets[static_cast<std::size_t>(at)];
    batch.index.as<std::int64_t>()[t] = batch.position.as<std::int64_t>()[t] = at;
  }
  batch.move_to(device);
  return batch;
}

}  // namespace capstan::framework

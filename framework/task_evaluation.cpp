#include "framework/task_evaluation.h"

#include <algorithm>
#include <map>

#include "framework/evaluation_batch.h"
#include "framework/generator.h"
#include "framework/json.h"
#include "framework/tasks/task.h"
#include "framework/tokenizer.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

/// The rows of x [N, C] whose numbers are given, in their order.
Tensor gathered(const View& x, const std::vector<std::int64_t>& rows) {
  Tensor out({std::ssize(rows), x.dim(1)}, x.type(), x.device(), kernels::Fill::none);
  for (std::size_t i = 0; i < rows.size(); ++i) out.view()[std::int64_t(i)].copy_from(x[rows[i]]);
  return out;
}

/// The greedy tokens after rows of xn [N, C], which stand at these positions. Logits exist for some rows at a time only.
std::vector<std::int32_t> greedy_tokens(const Model& model, const View& xn, const std::vector<std::int64_t>& rows,
                                        const std::vector<std::int64_t>& positions) {
  constexpr std::int64_t at_once = 256;  // rows
  std::vector<std::int32_t> tokens;
  for (std::int64_t begin = 0; begin < std::ssize(rows); begin += at_once) {
    const std::int64_t end = std::min(begin + at_once, std::ssize(rows));
    const Tensor logits = model.logits(gathered(xn, {rows.begin() + begin, rows.begin() + end}));
    const kernels::HostView host(logits);
    for (std::int64_t i = begin; i < end; ++i)
      tokens.push_back(choose_token(host.view()[i - begin], {}, 0, positions[std::size_t(rows[std::size_t(i)])]));
  }
  return tokens;
}

TaskAnswer answer_with(Model& model, parallel::Communicator& ring, std::int64_t tile, const ScoredDocument& document) {
  const std::int64_t length = std::ssize(document.ids) - 1, scored = std::ssize(document.positions);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(length), -1);
  std::vector<std::int64_t> number(targets.size(), -1);  // of the scored token that a position predicts
  for (std::int64_t i = 0; i < scored; ++i) {
    const std::int64_t at = document.positions[std::size_t(i)];
    targets[std::size_t(at - 1)] = document.ids[std::size_t(at)];
    number[std::size_t(at - 1)] = i;
  }
  const parallel::Ring shared = model.make_ring(ring, length, tile);
  const std::vector<std::int64_t> index = shared.layout.local_index(ring.rank());
  const Batch batch = evaluation_batch({document.ids.begin(), document.ids.end() - 1}, targets, index,
                                       model.position().length, model.device());
  const Pass pass = model.forward(shared, batch, tile, Keep::nothing);
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < index.size(); ++t)
    if (number[std::size_t(index[t])] >= 0) rows.push_back(std::int64_t(t));
  const std::vector<std::int32_t> greedy = greedy_tokens(model, pass.xn, rows, index);
  const std::vector<double> nll = kernels::host_values<double>(pass.nll);

  // Every rank knows its tokens; others add zeros.
  const Tensor all({2, scored}, DType::f64, Device::ref);
  double* const values = all.as<double>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t which = number[std::size_t(index[std::size_t(rows[i])])];
    values[which] = double(greedy[i]);
    values[scored + which] = nll[std::size_t(rows[i])];
  }
  ring.all_reduce(all);
  TaskAnswer answer{{}, {values + scored, values + 2 * scored}};
  for (std::int64_t i = 0; i < scored; ++i) answer.greedy.push_back(std::int32_t(values[i]));
  return answer;
}

/// Where an example lies in its file.
struct Example {
  std::int64_t begin, end;
  std::vector<std::int64_t> positions;
};

std::vector<Example> examples_of(const TokenFile& data) {
  if (!data.info().loss_mask)
    fail(ExitCode::bad_data, "{}: has no loss mask, so nothing in it is an answer; make it with `capstan task`",
         data.path());
  std::vector<Example> examples;
  const std::vector<std::int64_t>& offsets = data.document_offsets();
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    Example example{offsets[d], offsets[d + 1], {}};
    const std::vector<std::uint8_t> mask = data.read_loss_mask(example.begin, example.end);
    for (std::size_t at = 1; at < mask.size(); ++at)
      if (mask[at]) example.positions.push_back(std::int64_t(at));
    if (!example.positions.empty()) examples.push_back(std::move(example));
  }
  if (examples.empty())
    fail(ExitCode::bad_data, "{}: none of its {} documents has a token that is scored; make it with `capstan task`",
         data.path(), data.info().documents);
  return examples;
}

/// Counts of each example, [examples, 2]: right tokens, and the sum of their NLL.
Tensor score(const parallel::ProcessGrid& grid, const TokenFile& data, const std::vector<Example>& examples,
             const AnswerTask& answer) {
  Tensor scores({std::ssize(examples), 2}, DType::f64, Device::ref);
  for (std::int64_t e = grid.data_rank; e < std::ssize(examples); e += grid.data_size) {
    const Example& example = examples[std::size_t(e)];
    const ScoredDocument document{data.read(example.begin, example.end), example.positions};
    const TaskAnswer given = answer(document);
    CAPSTAN_CHECK(given.greedy.size() == document.positions.size() && given.nll.size() == document.positions.size(),
                  "{} tokens and {} losses for {} positions", given.greedy.size(), given.nll.size(),
                  document.positions.size());
    double* const sums = scores.as<double>() + 2 * e;
    for (std::size_t i = 0; i < document.positions.size(); ++i) {
      sums[0] += given.greedy[i] == document.ids[std::size_t(document.positions[i])];
      sums[1] += given.nll[i];
    }
  }
  grid.data->all_reduce(scores);  // zeros of all ranks but one
  return scores;
}

/// Sorts the examples into the cells of the file's task, if it has cells and its texts can be read without a model.
void add_cells(TaskResult& result, const TokenFile& data, const std::vector<Example>& examples,
               const std::vector<bool>& right) {
  const TaskEntry* task = find_task(data.info().task);
  if (!task || !task->cell || !is_builtin_tokenizer(data.info().tokenizer)) return;
  const auto tokenizer = make_tokenizer(data.info().tokenizer);
  if (tokenizer->hash() != data.info().tokenizer_hash) return;
  std::map<std::vector<std::int64_t>, TaskCell> cells;
  for (std::size_t e = 0; e < examples.size(); ++e) {
    const auto at = task->cell(tokenizer->decode(data.read(examples[e].begin, examples[e].end)));
    if (!at) continue;
    TaskCell& cell = cells[*at];
    cell.at = *at;
    ++cell.examples;
    cell.right += right[e];
  }
  result.cell_names = task->cells;
  for (auto& [at, cell] : cells) result.cells.push_back(std::move(cell));
}

}  // namespace

AnswerTask model_task_answer(Model& model, parallel::Communicator& ring, std::int64_t tile) {
  return [&model, &ring, tile](const ScoredDocument& document) { return answer_with(model, ring, tile, document); };
}

TaskResult evaluate_task(const parallel::ProcessGrid& grid, const TokenFile& data, std::int64_t max_examples,
                         const AnswerTask& answer) {
  std::vector<Example> examples = examples_of(data);
  TaskResult result{data.path(), data.info().task, data.info().set, data.info().source, {}, true, {}, {}};
  if (max_examples > 0 && max_examples < std::ssize(examples)) {
    examples.resize(std::size_t(max_examples));
    result.complete = false;
  }
  const Tensor scores = score(grid, data, examples, answer);
  std::vector<bool> right(examples.size());
  TaskCounts& counts = result.counts;
  for (std::size_t e = 0; e < examples.size(); ++e) {
    const double* const sums = scores.as<double>() + 2 * e;
    const std::int64_t tokens = std::ssize(examples[e].positions), right_tokens = std::int64_t(sums[0]);
    right[e] = right_tokens == tokens;
    ++counts.examples;
    counts.right += right[e];
    counts.tokens += tokens;
    counts.right_tokens += right_tokens;
    counts.nll += sums[1];
  }
  add_cells(result, data, examples, right);
  return result;
}

TaskResult evaluate_task(Model& model, const parallel::ProcessGrid& grid, const TokenFile& data,
                         std::int64_t max_examples, std::int64_t tile) {
  // Ids are below the file's vocabulary, so this is one look at the whole file unless that is larger than the model's.
  if (data.info().vocabulary > model.config().vocabulary) read_for_model(data, model, 0, data.info().tokens);
  return evaluate_task(grid, data, max_examples, model_task_answer(model, *grid.ring, tile));
}

}  // namespace capstan::framework

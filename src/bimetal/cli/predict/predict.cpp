#include "bimetal/predict/predict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/data/images/image_formats.h"
#include "bimetal/progress/text.h"
#include "bimetal/serving/client.h"

namespace bimetal::cli {
namespace {

constexpr const char* kPredictExamples = R"(Examples:
  bimetal predict 127.0.0.1:29600 t10k-images-idx3-ubyte.gz --count 20
  bimetal predict 127.0.0.1:29600 t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz
  bimetal predict 127.0.0.1:29600 cat/1.png
  bimetal predict 192.168.1.10:29500 images.idx --token-file bimetal.token --output said.safetensors

The address is that of `bimetal serve`, or of a job with parameter servers (`bimetal train --listen`),
whose newest weights answer.)";

struct PredictArguments {
  std::string address, images, labels, token_file, output;
  std::int64_t first = 0, count = -1;
  double timeout_s = 60;
  bool json = false;
};

/// JPEG or PNG, and no array of many images: by its name, as folders of images have it.
bool is_picture(const std::string& file) {
  auto ending = std::filesystem::path(file).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

/// The picture in the form of the training images: its middle square, of the model's size.
torch::Tensor read_picture(const std::string& file, const serving::ModelFacts& facts) {
  if (facts.height != facts.width || (facts.channels != 1 && facts.channels != 3)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the model '{}' takes arrays of {}x{}x{}, which no image file becomes: "
                            "give an IDX file",
                            facts.model, facts.channels, facts.height, facts.width));
  }
  auto image = data::middle_square(data::read_image(file), facts.height);
  if (facts.channels == 1) {
    image = image.to(torch::kFloat64).mean(0, /*keepdim=*/true).round().to(torch::kUInt8);
  }
  return image.unsqueeze(0).contiguous();
}

/// The images that were asked for: uint8 [n, H, W] or [n, C, H, W].
torch::Tensor read_some(const std::string& file, const PredictArguments& arguments) {
  const auto all = data::read_idx(file);
  const auto there = all.dim() > 0 ? all.size(0) : 0;
  const auto left = there - arguments.first;
  const auto count = arguments.count < 0 ? left : arguments.count;
  if (count >= 1 && count <= left) return all.narrow(0, arguments.first, count).contiguous();
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has {} entries: there are no {} from number {} on", file, there,
                          std::max<std::int64_t>(count, 1), arguments.first));
}

void require_images(const torch::Tensor& images, const serving::ModelFacts& facts,
                    const std::string& file) {
  const auto sizes = images.sizes().slice(1);
  const bool grey = facts.channels == 1 && images.dim() == 3 && sizes[0] == facts.height &&
                    sizes[1] == facts.width;
  const bool whole = images.dim() == 4 && sizes[0] == facts.channels && sizes[1] == facts.height &&
                     sizes[2] == facts.width;
  if (grey || whole) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds an array of {}, and the model '{}' takes images of {}x{}x{}",
                          file, fmt::join(images.sizes(), "x"), facts.model, facts.channels,
                          facts.height, facts.width));
}

struct Answer {
  serving::ModelFacts facts;
  serving::WeightsVersion weights;
  torch::Tensor logits, probabilities;  ///< float64 [n, classes]
  torch::Tensor labels;                 ///< int64 [n], or undefined
};

Answer ask(const PredictArguments& arguments) {
  Answer answer;
  const bool picture = is_picture(arguments.images);
  auto images = picture ? torch::Tensor() : read_some(arguments.images, arguments);
  if (picture && !arguments.labels.empty()) {
    throw Error(ErrorCode::InvalidArgument, "--labels are of an IDX file of images, and " +
                                                arguments.images +
                                                " is one image: leave --labels out");
  }
  if (!arguments.labels.empty()) {
    answer.labels = read_some(arguments.labels, arguments).to(torch::kInt64);
    if (answer.labels.dim() != 1 || answer.labels.size(0) != images.size(0)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} does not hold one label for each image of {}", arguments.labels,
                              arguments.images));
    }
  }
  serving::Client client({net::parse_endpoint(arguments.address), read_token(arguments.token_file),
                          net::encryption_from_environment()});
  const auto deadline = Deadline::after(milliseconds_of(arguments.timeout_s));
  answer.facts = client.facts(deadline);
  if (picture) images = read_picture(arguments.images, answer.facts);
  require_images(images, answer.facts, arguments.images);
  if (answer.labels.defined() && answer.labels.max().item<std::int64_t>() >= answer.facts.classes) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} holds labels beyond the model's {} classes", arguments.labels,
                            answer.facts.classes));
  }
  const std::span bytes(static_cast<const std::byte*>(images.const_data_ptr()), images.nbytes());
  const auto said = client.predict(bytes, comm::DType::uint8, images.size(0), deadline);
  answer.weights = said.weights;
  answer.logits = torch::empty({images.size(0), answer.facts.classes}, torch::kFloat64);
  std::memcpy(answer.logits.mutable_data_ptr(), said.logits.data(), answer.logits.nbytes());
  answer.probabilities = torch::softmax(answer.logits, 1);
  return answer;
}

std::string describe(const serving::WeightsVersion& weights) {
  return weights.oldest == weights.newest
             ? fmt::format("step {}", weights.oldest)
             : fmt::format("steps {} to {}", weights.oldest, weights.newest);
}

void print_json(const Answer& answer, std::int64_t first) {
  nlohmann::ordered_json json = {{"model", answer.facts.model},
                                 {"step", answer.weights.oldest},
                                 {"newest_step", answer.weights.newest},
                                 {"first", first},
                                 {"images", answer.logits.size(0)}};
  if (answer.labels.defined()) {
    const auto score = predict::score(answer.probabilities, answer.labels);
    for (const auto& [name, value] : score.metrics) json[name] = value;
    json["loss"] = score.loss;
  }
  const auto [probability, index] = answer.probabilities.max(1);
  for (std::int64_t i = 0; i < index.size(0); ++i) {
    json["classes"].push_back(index[i].item<std::int64_t>());
    json["probabilities"].push_back(probability[i].item<double>());
  }
  write_to(stdout, json.dump() + "\n");
}

void print_lines(const Answer& answer, std::int64_t first) {
  Terminal terminal;
  if (answer.labels.defined()) {
    const auto score = predict::score(answer.probabilities, answer.labels);
    std::string line;
    for (const auto& metric : score.metrics) {
      line += fmt::format("{} {}  ", metric.name, progress::text_of(metric));
    }
    terminal.print(line + fmt::format("loss {:.4f}  of {} images, by the weights of {}", score.loss,
                                      answer.labels.size(0), describe(answer.weights)));
    return;
  }
  const auto [probability, index] = answer.probabilities.max(1);
  std::string text = "image  class  probability\n";
  for (std::int64_t i = 0; i < index.size(0); ++i) {
    text += fmt::format("{:>5}  {:>5}  {:>11.4f}\n", first + i, index[i].item<std::int64_t>(),
                        probability[i].item<double>());
  }
  write_to(stdout, text);
  terminal.print(fmt::format("by the weights of {}", describe(answer.weights)));
}

int predict_command(const PredictArguments& arguments) {
  const auto answer = ask(arguments);
  if (!arguments.output.empty()) {
    checkpoint::TensorMap tensors = {{"logits", answer.logits},
                                     {"probabilities", answer.probabilities}};
    if (answer.labels.defined()) tensors.emplace("labels", answer.labels);
    checkpoint::write_safetensors(arguments.output, tensors);
  }
  if (arguments.json) {
    print_json(answer, arguments.first);
  } else {
    print_lines(answer, arguments.first);
  }
  return kSuccess;
}

void add_predict_options(CLI::App& command, PredictArguments& arguments) {
  command.add_option("address", arguments.address, "Who answers")
      ->required()
      ->type_name("ADDR:PORT");
  command
      .add_option("images", arguments.images,
                  "An IDX file of images, gzipped or not, or one JPEG or PNG")
      ->required()
      ->type_name("FILE");
  command
      .add_option("--labels", arguments.labels,
                  "An IDX file of their labels: print how many answers are right")
      ->type_name("FILE");
  command.add_option("--first", arguments.first, "The first image to send, counted from 0")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--count", arguments.count, "How many to send (default: all)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--token-file", arguments.token_file,
                  "The server's shared secret; needed beyond loopback")
      ->type_name("FILE");
  add_encrypt(command, "OPTIONS");
  command
      .add_option("--output", arguments.output,
                  "Write logits and probabilities of all classes here")
      ->type_name("FILE.safetensors");
  command.add_option("--timeout", arguments.timeout_s, "How long to try and to wait")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_flag("--json", arguments.json, "Print one JSON object");
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PredictArguments>();
  auto* command =
      app.add_subcommand("predict", "Ask a served model, or a job in training, about images");
  add_predict_options(*command, *arguments);
  command->footer(kPredictExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return predict_command(*arguments); }; });
}

}  // namespace bimetal::cli

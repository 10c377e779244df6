#include "bimetal/models/language/language_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::models {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const LanguageModelConfig& config) {
  return text_of(ErrorCode::InvalidArgument, [&] { check_language_model(config); });
}

TEST(LanguageConfig, PresetsAreThePublishedModels) {
  const LanguageModelConfig small{.family = "gpt2",
                                  .layers = 12,
                                  .width = 768,
                                  .heads = 12,
                                  .kv_heads = 12,
                                  .hidden = 3072,
                                  .context = 1024,
                                  .vocabulary = 50257,
                                  .tied = true};
  EXPECT_EQ(language_preset("gpt2"), small);
  const LanguageModelConfig tiny{.family = "llama",
                                 .layers = 22,
                                 .width = 2048,
                                 .heads = 32,
                                 .kv_heads = 4,
                                 .hidden = 5632,
                                 .context = 2048,
                                 .vocabulary = 32000};
  EXPECT_EQ(language_preset("llama-1.1b"), tiny);
  const auto xl = language_preset("gpt2-xl");
  EXPECT_EQ(xl.layers, 48);
  EXPECT_EQ(xl.heads, 25);
  EXPECT_EQ(xl.hidden, 6400);
  for (const auto& name : language_model_names()) {
    EXPECT_TRUE(is_language_model(name));
    EXPECT_EQ(refusal_of(language_preset(name)), "") << name;
  }
  EXPECT_FALSE(is_language_model("cnn"));
}

TEST(LanguageConfig, WhatHangsOnTheWidthFollowsIt) {
  const auto gpt = resized(language_preset("gpt2"), {.layers = 2, .width = 128, .vocabulary = 256});
  EXPECT_EQ(gpt.layers, 2);
  EXPECT_EQ(gpt.heads, 2);
  EXPECT_EQ(gpt.kv_heads, 2);
  EXPECT_EQ(gpt.hidden, 512);
  EXPECT_EQ(gpt.vocabulary, 256);
  EXPECT_EQ(gpt.context, 1024);
  const auto llama = resized(language_preset("llama"), {.width = 128, .heads = 8, .hidden = 300});
  EXPECT_EQ(llama.heads, 8);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.hidden, 300);
  EXPECT_EQ(resized(language_preset("llama"), {.heads = 6}).kv_heads, 6) << "4 do not divide 6";
  EXPECT_EQ(resized(language_preset("llama"), {.heads = 6, .kv_heads = 2}).kv_heads, 2);
  EXPECT_EQ(resized(language_preset("gpt2"), {}), language_preset("gpt2"));
}

TEST(LanguageConfig, RefusalsSayWhatWouldWork) {
  const auto with = [](const LanguageModelSizes& sizes, const char* name = "gpt2") {
    return refusal_of(resized(language_preset(name), sizes));
  };
  EXPECT_THAT(with({.width = 100, .heads = 3}), HasSubstr("a number of heads that divides it"));
  EXPECT_THAT(with({.heads = 8, .kv_heads = 3}, "llama"), HasSubstr("divides the heads"));
  EXPECT_THAT(with({.kv_heads = 3}), HasSubstr("leave model.kv_heads = 3 out"));
  EXPECT_THAT(with({.width = 12, .heads = 4}, "llama"), HasSubstr("in pairs"));
  EXPECT_THAT(with({.layers = -1}), HasSubstr("model.layers = -1"));
  EXPECT_THAT(with({.context = std::int64_t{1} << 40}), HasSubstr("model.context"));
  auto config = language_preset("gpt2");
  config.dropout = 1;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.dropout = 1"));
  config.family = "bert";
  EXPECT_THAT(refusal_of(config), HasSubstr("gpt2 and llama"));
  expect_error(ErrorCode::InvalidArgument, {"did you mean 'gpt2-xl'"},
               [&] { language_preset("gpt2-xll"); });
}

}  // namespace
}  // namespace bimetal::models

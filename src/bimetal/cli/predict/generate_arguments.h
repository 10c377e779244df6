#pragma once
// What `bimetal generate` is asked for.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bimetal/predict/generate.h"

namespace bimetal::cli {

struct GenerateArguments {
  std::string run;  ///< as the user names it; resolved: where the model is
  std::string prompt, tokenizer;
  std::vector<std::string> workers, set;
  std::string token_file;
  double timeout_s = 600;
  predict::Sampling sampling = {};
};

/// Those of the text itself, which ranks are told, too.
void add_text_options(CLI::App& command, GenerateArguments& arguments);

/// The way back: what a command line with those options is made of.
std::vector<std::string> text_options(const GenerateArguments& arguments);

}  // namespace bimetal::cli

// A loop whose workers may be lost, leave and come while it runs: each sample is used once, and the
// result is that of workers that stay.
//
//   bimetal launch -n 3 --elastic --restart 1 -- ./elastic     kill one: it is started again
//   BIMETAL_DOOR=127.0.0.1:PORT ./elastic                      one more; SIGTERM lets one leave

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <string>

namespace nn = torch::nn;

struct Printed : bimetal::Observer {
  bool leads = false;  // as rank 0 does, which may be another worker later
  void on_leading(bool does) override { leads = does; }
  void on_notice(const std::string& text) override {
    if (leads) std::printf("%s\n", text.c_str());
  }
  void on_step(const bimetal::Progress& now) override {
    if (leads && now.step % 10 == 0) std::printf("%s\n", bimetal::progress_line(now).c_str());
  }
};

static const bimetal::Job* this_job = nullptr;

int main(int argc, char** argv) try {
  const bool wide = argc > 1 && argv[1] == std::string("float64");
  const auto job = bimetal::init(argc, argv);
  this_job = &job;
  std::signal(SIGTERM, [](int) { this_job->leave(); });
  job.watch(std::make_shared<Printed>());
  torch::manual_seed(1);  // the same data on every rank
  const auto x = torch::randn({2000, 16}, wide ? torch::kFloat64 : torch::kFloat32);
  const auto y = (x * x).sum(1).gt(16).to(torch::kInt64);
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});

  // The state that outlives a worker; all else is made anew in the function.
  nn::Sequential model(nn::Linear(16, 64), nn::GELU(), nn::Linear(64, 2));
  model->to(x.scalar_type());
  torch::optim::AdamW adam(model->parameters(), 3e-3);
  const bool stayed = bimetal::elastic(job, model, adam, [&](const auto& at) {
    if (job.rank() == 0) std::printf("others join by BIMETAL_DOOR=%s\n", job.doors()[0].c_str());
    bimetal::DataParallel trainer(model, job);
    for (auto& batch : job.balanced(data, {.global_batch = 40, .epochs = 4, .from = at})) {
      trainer.step(adam, [&](const bimetal::Batch& piece) {
        return torch::cross_entropy_loss(model->forward(piece.x), piece.y);
      });
      if (batch.step % 100 == 0) trainer.save("elastic-checkpoints", adam);
    }
  });
  if (stayed && job.rank() == 0) bimetal::save(model, "elastic.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "elastic: %s\n", error.what());
  return 1;
}

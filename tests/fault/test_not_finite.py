"""A loss that is NaN or infinite: the step and the rank are named, the last good checkpoint stays."""

import harness
from harness import FaultTest


class NotFinite(FaultTest):
    def test_divergence_keeps_the_last_good_checkpoint(self):
        good = self.write_job(train__steps=20)
        job = self.train(good).done()
        self.assertEqual(self.saved_steps()[-1], 20)
        before = (self.checkpoints / "step-00000020" / "model.safetensors").read_bytes()

        diverging = self.write_job("diverging.toml", train__learning_rate=1e30)
        job = self.train(diverging, "--resume", self.checkpoints).wait()
        self.assert_one_message(job, harness.NOT_FINITE, "step", "rank", "checkpoint")
        self.assertEqual((self.checkpoints / "step-00000020" / "model.safetensors").read_bytes(),
                         before)
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        self.assert_can_resume(good)

    def test_overflows_of_float16_are_skipped_by_all_ranks_and_do_not_go_on_for_ever(self):
        skipping = self.write_job(train__steps=20, train__precision="float16", train__learning_rate=0.001)
        report = self.reported(skipping, workers=("cpu:threads=1",) * 2)
        self.assertEqual({worker["precision"] for worker in report["workers"]}, {"float16"})
        self.assertEqual(report["loss_scale"]["scale"] < 65536, report["loss_scale"]["skipped_steps"] > 0)

        hopeless = self.write_job("hopeless.toml", train__steps=20, train__precision="float16", train__loss_scale=1e9)
        self.assert_one_message(self.train(hopeless), harness.NOT_FINITE, "10 steps in a row", "train.loss_scale = 0")


if __name__ == "__main__":
    harness.main()

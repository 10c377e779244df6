"""The check for ways to execute what is read must fail on each of those that it claims to find."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).with_name("check_data_only.py")


def check(name: str, text: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as root:
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)


class CheckDataOnly(unittest.TestCase):
    def assert_refused(self, name, text, *words):
        result = check(name, text)
        self.assertEqual(result.returncode, 1, f"accepted: {text}\n{result.stderr}")
        for word in words:
            self.assertIn(word, result.stdout)

    def assert_accepted(self, name, text):
        result = check(name, text)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_refuses_archives_in_cpp(self):
        for text in ("torch::serialize::InputArchive archive;", "  torch::load(tensor, path);",
                     "auto module = torch::jit::load(path);", "auto value = torch::pickle_load(bytes);"):
            self.assert_refused("src/bimetal/a.cpp", f"// first\n{text}\n", "a.cpp:2:")

    def test_accepts_data_in_cpp(self):
        self.assert_accepted("src/bimetal/a.cpp", "auto tensors = read_safetensors(path);  // no torch::load\n"
                                                  "torch::serialize::OutputArchive archive;\n")
        self.assert_accepted("src/bimetal/a.h", "  void load(torch::serialize::InputArchive&) final { refuse_archive(); }\n")

    def test_refuses_code_in_python(self):
        for text in ("import pickle\npickle.loads(data)", "import pickle as p\np.load(file)",
                     "from pickle import loads as read\nread(data)", "import marshal\nmarshal.loads(data)",
                     "from ray import cloudpickle\ncloudpickle.loads(data)", "eval(text)", "exec(text)",
                     "import torch\ntorch.load(path)", "import torch\ntorch.load(path, weights_only=False)",
                     "import torch\ntorch.jit.load(path)", "import numpy as np\nnp.load(path)",
                     "import numpy as np\nnp.load(path, allow_pickle=True)", "import yaml\nyaml.load(text)"):
            self.assert_refused("python/bimetal/a.py", text, "a.py:", "can run what it reads")

    def test_accepts_data_in_python(self):
        self.assert_accepted("python/bimetal/a.py",
                             "import torch\nimport pickle\nimport numpy as np\nimport json\n"
                             "torch.load(path, weights_only=True)\nnp.load(path, allow_pickle=False)\njson.load(file)\n"
                             "model.eval()\nraise pickle.PicklingError\n")


if __name__ == "__main__":
    unittest.main()

"""`bimetal.ray up --share` and `join`: two machines (network namespaces), a code, and no token that anybody copies."""

import pathlib
import re
import subprocess
import unittest

import clusters
from commands import Commands

WRONG = "acorn-actor-amber-apron"


def why_not():
    import namespaces

    return clusters.WHY_NOT or namespaces.why_not()


@unittest.skipIf(why_not(), why_not())
class Share(Commands):
    def setUp(self):
        super().setUp()
        from namespaces import Host, cable

        self.hosts = [Host(), Host()]
        for host in self.hosts:
            self.addCleanup(host.remove)
        cable(self.hosts[0], "cable0", self.hosts[1], "cable0")
        for number, host in enumerate(self.hosts, 1):
            host.address("cable0", f"10.77.0.{number}/24")
            host.ip("route", "add", "default", "dev", "cable0")
        self.be("first")

    def be(self, machine):
        """Processes started from now on are that machine's user's."""
        home = self.home / machine
        (home / ".config" / "bimetal").mkdir(parents=True, exist_ok=True)
        (home / ".config" / "bimetal" / "name").write_text(machine)
        self.environment |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}

    def ask(self, code, *words):
        """`join` that is refused."""
        done = self.run_python("-m", "bimetal.ray", "join", *words, before=self.hosts[1].command(), BIMETAL_CODE=code)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stdout + done.stderr

    def test_a_code_in_the_place_of_a_token(self):
        head, said = self.node("up", "--share", before=self.hosts[0].command())
        code = re.search(r"bimetal ray join 10\.77\.0\.1\n.*within two minutes: ([a-z-]+)", said)
        self.assertTrue(code, said)
        token = pathlib.Path(self.home, "first", ".ray", "auth_token").read_text()
        self.assertNotIn(token.strip(), said)
        self.be("second")
        self.assertIn("4 tries are left", self.ask(WRONG, "10.77.0.1"))
        mine = pathlib.Path(self.home, "second", ".ray", "auth_token")
        self.assertFalse(mine.exists())
        self.environment["BIMETAL_CODE"] = code[1]
        other, said = self.node("join", "10.77.0.1", before=self.hosts[1].command())
        self.assertIn("first lets this machine in", said)
        self.assertIn("this node (10.77.0.2) has joined 10.77.0.1:6379", said)
        self.assertEqual((mine.read_text(), mine.stat().st_mode & 0o777), (token, 0o600))
        self.end(other)
        del self.environment["BIMETAL_CODE"]  # the token is there now
        other, said = self.node("join", "10.77.0.1", before=self.hosts[1].command())
        self.end(other)
        mine.unlink()  # and without it the two remember each other
        other, said = self.node("join", "10.77.0.1", before=self.hosts[1].command())
        self.assertIn("first lets this machine in", said)
        self.end(other)
        mine.write_text("another cluster's")
        self.assertIn("has another cluster's token",
                      self.ask(code[1], "10.77.0.1"))
        self.end(head)
        gone = subprocess.run([*self.hosts[0].command(), "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn(":29401", gone)

    def test_nothing_is_shared(self):
        self.be("second")
        said = self.ask("", "10.77.0.1")
        self.assertIn("there is no token at", said)
        self.assertIn("bimetal ray up --share", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)

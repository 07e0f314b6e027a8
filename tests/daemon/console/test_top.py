"""test_top.py: `rollcall top` in a real terminal (tmux), beside a real hung job: keys, tables, sizes, and the terminal
afterwards."""
import os
import shutil
import subprocess
import unittest

from support import Case, CATALOGUE, ROLLCALL, until


class Top(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.assertTrue(shutil.which("tmux"), "tmux is needed")
        live = self.path("live.json")
        self.job = self.start("run", "-n", "4", "--hostnccl", "--timeout", "300", "--json", live, "--", CATALOGUE,
                              "skipped", "sick")
        self.addCleanup(self.end)
        self.assertTrue(until(lambda: os.path.exists(live) and os.path.getsize(live) > 0), "no verdict")
        self.socket = self.path("tmux")
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24",
                  f"sh -c '{ROLLCALL} top -d 0.2; echo DONE rc=$?; stty -a | tr \";\" \"\\n\" | grep -w echo; sleep "
                  "1000'")

    def end(self):
        if shutil.which("tmux"):
            subprocess.run(["tmux", "-S", self.path("tmux"), "kill-server"], capture_output=True, env=self.env)
        if self.job.poll() is None:
            self.job.terminate()
            self.job.wait(300)

    def tmux(self, *args):
        r = subprocess.run(["tmux", "-S", self.socket, *args], capture_output=True, text=True,
                           env={**self.env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, timeout=300)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def wait_for(self, text):
        self.assertTrue(until(lambda: text in self.screen(), 0.1), f"'{text}' is not on the screen:\n{self.screen()}")

    def wait_for_whole(self, height):
        """A screen is captured while it is being drawn, too: on a busy machine its first lines are there long before
        its last."""
        def whole():
            lines = self.screen().rstrip("\n").split("\n")
            return len(lines) == height and lines[0].startswith("rollcall  job") and "q quit" in lines[-1]
        self.assertTrue(until(whole, 0.1), f"no whole screen of {height} lines:\n{self.screen()}")

    def key(self, *keys):
        self.tmux("send-keys", *keys)

    def test_keys_tables_sizes_and_the_terminal_afterwards(self):
        self.wait_for("RANK  HOST")
        self.wait_for_whole(24)
        self.key("g")
        self.wait_for("N  STATE")  # columns further on may not fit beside what the ranks are in
        self.key("g", "Tab")
        self.wait_for("BEHIND")
        self.key("Tab")
        self.wait_for("CERTAINTY")
        self.wait_for("proven")
        self.key("Tab")
        self.wait_for("RANK  HOST")
        self.key("?")
        self.wait_for("freeze: keep what is shown")
        self.key("?", "f")
        self.wait_for("frozen")
        self.key("f")
        self.tmux("resize-window", "-x", "50", "-y", "10")
        self.wait_for_whole(10)
        self.key("Down", "Down", "Up", "End", "Home", "PageDown", "PageUp")
        self.tmux("resize-window", "-x", "80", "-y", "24")
        self.wait_for("RANK  HOST")
        self.key("q")
        self.wait_for("DONE rc=0")
        self.wait_for("echo")
        self.assertRegex(self.screen(), r"(?m)(^|\s)echo(\s|$)")
        self.assertNotRegex(self.screen(), r"(?m)\s-echo(\s|$)")

    def test_says_how_old_its_picture_is_when_the_root_is_gone(self):
        self.wait_for("RANK  HOST")
        self.job.terminate()
        self.job.wait(300)
        self.wait_for("last heard")
        self.wait_for("RANK  HOST")
        self.key("q")
        self.wait_for("DONE rc=0")


if __name__ == "__main__":
    unittest.main(verbosity=2)

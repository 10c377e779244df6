"""What lets another machine through this one's firewall. The doctor says it and does nothing of it by itself."""

from __future__ import annotations

import os
import shutil
import sys

SYSTEM_TOOLS = ":/usr/sbin:/sbin"  # where they are, whether or not this user looks there


def way_through(peer: str, platform: str = sys.platform) -> str:
    """What to type on this machine so that ranks on `peer`, an address, reach those here: they listen at ports that the system
    chooses, so that it is the peer or the program that has to be let in."""
    if platform == "win32":
        python = getattr(sys, "_base_executable", "") or sys.executable  # a venv's only starts it
        return (f"New-NetFirewallRule -DisplayName Bimetal -Direction Inbound -Action Allow -Protocol TCP -Profile Private "
                f"-Program '{python}' in PowerShell as administrator")
    if platform == "darwin":
        tool, python = "sudo /usr/libexec/ApplicationFirewall/socketfilterfw", os.path.realpath(sys.executable)
        return f"{tool} --add '{python}' && {tool} --unblockapp '{python}'"
    for tool, words in (("ufw", f"allow proto tcp from {peer}"),
                        ("firewall-cmd", f"--zone=trusted --add-source={peer}"),
                        ("nft", f"insert rule inet filter input {'ip6' if ':' in peer else 'ip'} saddr {peer} tcp dport 1024-65535 accept"),
                        ("ip6tables" if ":" in peer else "iptables", f"-I INPUT -p tcp -s {peer} -j ACCEPT")):
        if shutil.which(tool, path=os.environ.get("PATH", os.defpath) + SYSTEM_TOOLS):
            return f"sudo {tool} {words}"
    return "none of the tools that set up a firewall is here: look at the router's or the cloud's"

"""A browser without a window, and what it shows: Debian's Chromium, driven by Selenium."""

import contextlib
import os
import pathlib
import time

from harness import PATIENCE_S
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service

DESKTOP, PHONE = (1200, 900), (360, 740)


class Browser:
    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))

    def close(self):
        self.driver.quit()

    def look(self, size=DESKTOP, scheme="light"):
        width, height = size
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]})

    def open(self, address):
        self.driver.get(address)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def text(self, selector):
        """As people see it; empty for what is hidden."""
        with contextlib.suppress(StaleElementReferenceException):
            return "\n".join(element.text for element in self.all(selector))
        return ""

    def click(self, selector):
        element, = self.all(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def wait(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if condition():
                    return
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain for {what}; the page shows:\n{self.text('body')}\n{self.complaints()}")
            time.sleep(0.1)

    def wait_for_text(self, selector, text):
        self.wait(lambda: text in self.text(selector), f"'{text}' in {selector}")

    def complaints(self):
        """The browser's complaints about script, style and refused requests."""
        return [entry["message"] for entry in self.driver.get_log("browser") if "ERR_CONNECTION_REFUSED" not in entry["message"]
                and "ERR_INCOMPLETE_CHUNKED" not in entry["message"] and "ERR_CONNECTION_RESET" not in entry["message"]]

    def inaccessible(self):
        """The faults that axe-core finds, as text; nothing if it is not there."""
        script = pathlib.Path(os.environ.get("BIMETAL_AXE", "nowhere"))
        if not script.is_file():
            print("axe-core is not there: accessibility is not checked")
            return []
        self.run(script.read_text())
        return self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(found => done(found.violations.flatMap("
            "rule => rule.nodes.slice(0, 3).map(node => `${rule.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`))))")

    def overflow(self):
        """The number of pixels by which the page is wider than the window."""
        return self.run("return document.documentElement.scrollWidth - innerWidth")

    def picture(self, path, selector=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        if selector is None:
            self.driver.save_screenshot(str(path))
        else:
            self.all(selector)[0].screenshot(str(path))

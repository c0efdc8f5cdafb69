"""Environments in a web browser: headless Chromium, driven through playwright. Build one on `BrowserResourcesServer`;
docs/browser.md shows how."""

from nemo_gym.browser.page import Observation as Observation
from nemo_gym.browser.server import BrowserConfig as BrowserConfig
from nemo_gym.browser.server import BrowserResourcesServer as BrowserResourcesServer
from nemo_gym.browser.server import BrowserSession as BrowserSession
from nemo_gym.browser.site import Site as Site

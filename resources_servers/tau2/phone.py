"""The user's side of the telecom domain: a phone and what is around it, and the 30 tools of its owner."""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

SIGNAL_BY_NETWORK = {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}
NETWORK_BY_MODE = {"4g_only": "4G", "3g_only": "3G", "2g_only": "2G", "4g_5g_preferred": "5G"}
SPEED_BY_NETWORK = {"2G": 0.25, "3G": 3.0, "4G": 55.0, "5G": 275.0}
"""Mbit/s with an excellent signal."""
SHARE_BY_SIGNAL = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
SPEEDS = ((1, "very poor"), (5, "poor"), (25, "fair"), (100, "good"), (float("inf"), "excellent"))
"""Each description holds below its number of Mbit/s."""
SLOW_VPN, DATA_SAVER = 0.1, 0.2
"""What is left of the speed."""
MMSC_URL = "http://mms.carrier.com/mms/wapenc"
PERMISSIONS = ("sms", "storage", "phone", "network")
TOOLS = (
    *("check_status_bar", "check_network_status", "check_network_mode_preference", "set_network_mode_preference"),
    *("run_speed_test", "toggle_airplane_mode", "check_sim_status", "reseat_sim_card", "toggle_data"),
    *("toggle_roaming", "check_data_restriction_status", "toggle_data_saver_mode", "check_apn_settings"),
    *("set_apn_settings", "reset_apn_settings", "check_wifi_status", "toggle_wifi", "check_wifi_calling_status"),
    *("toggle_wifi_calling", "check_vpn_status", "connect_vpn", "disconnect_vpn", "check_installed_apps"),
    *("check_app_status", "check_app_permissions", "grant_app_permission", "can_send_mms", "reboot_device"),
    *("check_payment_request", "make_payment"),
)

Mode = Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"]


class AccessPoint(BaseModel):
    """The settings of an access point."""

    apn_name: Literal["internet", "broken"] = "internet"
    reset_at_reboot: bool = False
    mms_apn: str | None = "mms"
    mmsc_url: str | None = MMSC_URL
    mms_proxy: str | None = None
    mms_port: int | None = None


@dataclass
class PaymentRequest:
    bill_id: str
    amount_due: float
    is_paid: bool = False


@dataclass
class Phone:
    """A phone, its owner and where they are."""

    phone_number: str | None = None
    is_abroad: bool = False
    is_roaming_allowed: bool = False
    """By the carrier."""
    is_data_used_up: bool = False
    is_line_active: bool = True
    payment_request: PaymentRequest | None = None

    is_sim_missing: bool = False
    sim_status: str = "active"
    airplane_mode: bool = False
    is_connected: bool = True
    network: str = "5G"
    signal: str = "good"
    data: bool = True
    roaming: bool = False
    data_saver: bool = False
    mode: str = "4g_5g_preferred"
    access_point: AccessPoint = field(default_factory=AccessPoint)
    wifi: bool = False
    wifi_calling: bool = False
    mms_over_wifi: bool = False
    is_vpn_connected: bool = False
    is_vpn_slow: bool = False
    apps: dict[str, dict[str, bool]] = field(
        default_factory=lambda: {
            "messaging": {"sms": True, "storage": True, "phone": True, "network": False},
            "browser": {"sms": False, "storage": True, "phone": False, "network": True},
        }
    )

    # Network

    def check_status_bar(self) -> str:
        """Look at the icons at the top of the screen: signal, network, mobile data, Wi-Fi, VPN, battery."""
        if self.airplane_mode:
            shown = ["Airplane Mode"]
        else:
            shown = ["No Signal" if self.signal == "none" else f"Signal {self.signal}"]
            shown += [self.network] if self.network != "none" else []
            has_data = self.data and self.network != "none"
            shown += ["Data Enabled"] if has_data else ["Data Disabled"]
            shown += ["Data Saver"] if has_data and self.data_saver else []
        shown += ["VPN Connected"] if self.is_vpn_connected else []
        return " | ".join([*shown, "Battery 80%"])

    def check_network_status(self) -> str:
        """Look at the connection: airplane mode, SIM card, cellular network, mobile data, roaming, Wi-Fi."""
        lines = {
            "Airplane mode": _on(self.airplane_mode),
            "SIM card": self._sim(),
            "Cellular connection": "connected" if self.is_connected else "no_service",
            "Cellular signal": self.signal,
            "Cellular network": self.network,
            "Mobile data": _on(self.data),
            "Data roaming": _on(self.roaming),
            "Wi-Fi": _on(self.wifi),
            "Wi-Fi connected": "no",
        }
        return "\n".join(f"{name}: {value}" for name, value in lines.items())

    def check_network_mode_preference(self) -> str:
        """Look which cellular networks the phone prefers."""
        return f"Network mode preference: {self.mode}"

    def set_network_mode_preference(self, mode: Mode) -> str:
        """Choose which cellular networks the phone prefers."""
        self.mode = mode
        return self._changed(f"Network mode preference: {mode}.")

    def run_speed_test(self) -> str:
        """Measure the speed of the mobile internet connection."""
        speed = self.speed()
        if speed is None:
            return "Speed test failed: no connection."
        return f"Speed test: {speed:.2f} Mbps ({_description(speed)})."

    def toggle_airplane_mode(self) -> str:
        """Switch airplane mode on or off. It disconnects all radios."""
        self.airplane_mode = not self.airplane_mode
        if self.airplane_mode:
            self.is_vpn_connected = False
        return self._changed(f"Airplane mode is {_on(self.airplane_mode)}.")

    def check_sim_status(self) -> str:
        """Look whether the SIM card works, is missing, or is locked."""
        return f"SIM card: {self._sim()}"

    def reseat_sim_card(self) -> str:
        """Take the SIM card out and put it in again."""
        self.is_sim_missing = False
        return self._changed("The SIM card was put in again.")

    # Mobile data

    def toggle_data(self) -> str:
        """Switch mobile data on or off."""
        self.data = not self.data
        return self._changed(f"Mobile data is {_on(self.data)}.")

    def toggle_roaming(self) -> str:
        """Switch data roaming on or off."""
        self.roaming = not self.roaming
        return self._changed(f"Data roaming is {_on(self.roaming)}.")

    def check_data_restriction_status(self) -> str:
        """Look whether data saver mode is on."""
        return f"Data saver mode is {_on(self.data_saver)}."

    def toggle_data_saver_mode(self) -> str:
        """Switch data saver mode on or off. It uses less data and is slower."""
        self.data_saver = not self.data_saver
        return self._changed(f"Data saver mode is {_on(self.data_saver)}.", searches=False)

    def check_apn_settings(self) -> str:
        """Look at the settings of the access point: its name, and the URL for picture messages."""
        return f"APN name: {self.access_point.apn_name}\nMMSC URL: {self.access_point.mmsc_url or 'not set'}"

    def set_apn_settings(self, apn_settings: AccessPoint) -> str:
        """Change the settings of the access point."""
        self.access_point = apn_settings
        return self._changed(f"APN name: {apn_settings.apn_name}.")

    def reset_apn_settings(self) -> str:
        """Have the settings of the access point reset at the next reboot."""
        self.access_point.reset_at_reboot = True
        return self._changed("The APN settings will be reset at the next reboot.")

    # Wi-Fi and VPN

    def check_wifi_status(self) -> str:
        """Look whether Wi-Fi is on and connected."""
        return f"Wi-Fi is {_on(self.wifi)}{' and not connected' if self.wifi else ''}."

    def toggle_wifi(self) -> str:
        """Switch Wi-Fi on or off."""
        if self.airplane_mode:
            return self._changed("Wi-Fi cannot be changed in airplane mode.", searches=False)
        self.wifi = not self.wifi
        return self._changed(f"Wi-Fi is {_on(self.wifi)}.", searches=False)

    def check_wifi_calling_status(self) -> str:
        """Look whether Wi-Fi calling is on."""
        return f"Wi-Fi calling is {_on(self.wifi_calling)}."

    def toggle_wifi_calling(self) -> str:
        """Switch Wi-Fi calling on or off. With it, calls and messages go over Wi-Fi."""
        self.wifi_calling = not self.wifi_calling
        return self._changed(f"Wi-Fi calling is {_on(self.wifi_calling)}.", searches=False)

    def check_vpn_status(self) -> str:
        """Look whether a VPN is connected, and how well it performs."""
        performance = "poor" if self.is_vpn_slow else "excellent"
        return f"VPN is ON, performance: {performance}." if self.is_vpn_connected else "VPN is OFF."

    def connect_vpn(self) -> str:
        """Connect to the VPN."""
        if self.is_vpn_connected:
            return "The VPN is connected already."
        self.is_vpn_connected = True
        return self._changed("The VPN is connected.", searches=False)

    def disconnect_vpn(self) -> str:
        """Disconnect the VPN."""
        was_connected, self.is_vpn_connected = self.is_vpn_connected, False
        return self._changed("The VPN is disconnected." if was_connected else "There was no VPN.", searches=False)

    # Apps

    def check_installed_apps(self) -> str:
        """List the apps on the phone."""
        return f"Apps: {', '.join(self.apps)}"

    def check_app_status(self, app_name: str) -> str:
        """Look at an app and its permissions."""
        return self.check_app_permissions(app_name)

    def check_app_permissions(self, app_name: str) -> str:
        """Look which permissions an app has."""
        if app_name not in self.apps:
            return f"There is no app '{app_name}' on this phone."
        granted = [name for name, is_granted in self.apps[app_name].items() if is_granted]
        return f"Permissions of {app_name}: {', '.join(granted) or 'none'}"

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Give an app a permission: sms, storage, phone or network."""
        if app_name not in self.apps:
            return self._changed(f"Error: there is no app '{app_name}' on this phone.", searches=False)
        if permission.lower() not in PERMISSIONS:
            return self._changed(f"Error: the permissions are {', '.join(PERMISSIONS)}.", searches=False)
        self.apps[app_name][permission.lower()] = True
        return self._changed(f"{app_name} has the permission {permission.lower()} now.", searches=False)

    def can_send_mms(self) -> str:
        """Try whether the messaging app can send picture messages."""
        return f"Picture messages can{'' if self.sends_mms() else 'not'} be sent."

    # The phone itself, and payments

    def reboot_device(self) -> str:
        """Restart the phone."""
        if self.access_point.reset_at_reboot:
            self.access_point = AccessPoint()
        return self._changed("The phone was restarted.")

    def check_payment_request(self) -> str:
        """Look whether the carrier asks for a payment."""
        request = self.payment_request
        return f"Bill {request.bill_id}: {request.amount_due} USD." if request else "There is no payment request."

    def make_payment(self) -> str:
        """Pay the bill that the carrier asks for."""
        if self.payment_request is None:
            return "There is no payment request."
        self.payment_request.is_paid = True
        return f"{self.payment_request.amount_due} USD were paid for the bill {self.payment_request.bill_id}."

    # What tasks begin with

    def set_user_info(self, name: str, phone_number: str) -> None:
        self.phone_number = phone_number

    def set_user_location(self, abroad: bool) -> None:
        self.is_abroad = abroad

    def turn_airplane_mode_on(self) -> None:
        self.airplane_mode, self.is_vpn_connected = True, False
        self.search_network()

    def turn_data_off(self) -> None:
        self.data = False
        self.search_network()

    def turn_roaming_on(self) -> None:
        self.roaming = True
        self.search_network()

    def turn_roaming_off(self) -> None:
        self.roaming = False
        self.search_network()

    def turn_data_saver_mode_on(self) -> None:
        self.data_saver = True

    def unseat_sim_card(self) -> None:
        self.is_sim_missing = True
        self.search_network()

    def lock_sim_card(self, mode: Literal["pin", "puk"]) -> None:
        self.sim_status = f"locked_{mode}"
        self.search_network()

    def break_apn_settings(self) -> None:
        self.access_point.apn_name = "broken"
        self.search_network()

    def break_apn_mms_setting(self) -> None:
        self.access_point.mmsc_url = None

    def break_vpn(self) -> None:
        self.is_vpn_connected = self.is_vpn_slow = True

    def set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        self.wifi_calling = enabled
        self.mms_over_wifi = self.mms_over_wifi if mms_over_wifi is None else mms_over_wifi

    def remove_app_permission(self, app_name: str, permission: str) -> None:
        self.apps[app_name][permission] = False

    def simulate_network_search(self) -> None:
        self.search_network()

    # What is true in the end

    def assert_service_status(self, expected_status: str) -> bool:
        return ("connected" if self.is_connected else "no_service") == expected_status

    def assert_mobile_data_status(self, expected_status: bool) -> bool:
        return self.has_mobile_data() == expected_status

    def assert_internet_speed(self, expected_speed: float, expected_desc: str | None = None) -> bool:
        speed = self.speed()
        is_described = expected_desc is None or (speed is not None and _description(speed) == expected_desc.lower())
        return (speed or 0.0) >= expected_speed and is_described

    def assert_can_send_mms(self, expected_status: bool) -> bool:
        return self.sends_mms() == expected_status

    # How it works

    def search_network(self) -> None:
        """Find out which network the phone is in now."""
        has_service = self._sim() == "active" and not self.airplane_mode and self.is_line_active
        self.is_connected = has_service and self.access_point.apn_name != "broken"
        self.network = NETWORK_BY_MODE[self.mode] if self.is_connected else "none"
        self.signal = SIGNAL_BY_NETWORK[self.network] if self.is_connected else "none"

    def has_mobile_data(self) -> bool:
        if self.airplane_mode or self.signal == "none" or not self.is_connected:
            return False
        if self.is_abroad and not (self.roaming and self.is_roaming_allowed):
            return False
        return self.data and not self.is_data_used_up

    def speed(self) -> float | None:
        """In Mbit/s; None without mobile data."""
        if not self.has_mobile_data():
            return None
        share = SHARE_BY_SIGNAL[self.signal]
        share *= SLOW_VPN if self.is_vpn_connected and self.is_vpn_slow else 1.0
        share *= DATA_SAVER if self.data_saver else 1.0
        return round(SPEED_BY_NETWORK[self.network] * share, 2)

    def sends_mms(self) -> bool:
        app = self.apps.get("messaging", {})
        is_set_up = self.access_point.mmsc_url is not None and not (self.wifi_calling and self.mms_over_wifi)
        is_permitted = app.get("storage", False) and app.get("sms", False)
        return self.has_mobile_data() and self.network != "2G" and is_set_up and is_permitted

    def _sim(self) -> str:
        return "missing" if self.is_sim_missing else self.sim_status

    def _changed(self, text: str, *, searches: bool = True) -> str:
        """What a tool says that changed something."""
        if searches:
            self.search_network()
        return f"{text}\nStatus bar: {self.check_status_bar()}"


def _on(value: bool) -> str:
    return "ON" if value else "OFF"


def _description(speed: float) -> str:
    return next(text for limit, text in SPEEDS if speed < limit)

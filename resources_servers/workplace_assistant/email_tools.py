"""The company directory and mail."""

from typing import Any

from resources_servers.workplace_assistant.arguments import NOW, is_address, lowered, page_of, parsed_time, text
from resources_servers.workplace_assistant.tables import Office, Row


def find_email_address(office: Office, /, name: Any = "") -> Any:
    if not name:
        return "Name not provided."
    wanted = lowered(name)
    return [address for address in office.directory if wanted in address.lower()]


def get_email_information_by_id(office: Office, /, email_id: Any = None, field: Any = None) -> Any:
    if not email_id:
        return "Email ID not provided."
    if not field:
        return "Field not provided."
    mail = office.mails.find(email_id)
    if mail is None:
        return "Email not found."
    if text(field) not in mail:
        return f"Field '{field}' not found. Available fields: {', '.join(office.mails.columns)}"
    return {field: mail[field]}


def search_emails(
    office: Office, /, query: Any = "", date_min: Any = None, date_max: Any = None, page: Any = 1, page_size: Any = 5
) -> Any:
    try:
        found = _matching_mails(office.mails.rows, lowered(query).split())
        if date_min:
            first_day = parsed_time(date_min).date().isoformat()
            found = [mail for mail in found if mail["sent_datetime"][:10] >= first_day]
        if date_max:
            last_day = parsed_time(date_max).date().isoformat()
            found = [mail for mail in found if mail["sent_datetime"][:10] <= last_day]
        if not found:
            return "No emails found."
        newest_first = sorted(found, key=lambda mail: str(mail["sent_datetime"]), reverse=True)
        return page_of("emails", newest_first, page, page_size)
    except (TypeError, ValueError) as error:
        return f"Error searching emails: {error}"


def _matching_mails(mails: tuple[Row, ...], words: list[str]) -> list[Row]:
    """The mails in which every word occurs somewhere."""
    wanted = dict.fromkeys(words)
    return [mail for mail in mails if all(map(_searched_text(mail).__contains__, wanted))]


def _searched_text(mail: Row) -> str:
    cells = (mail["subject"], mail["body"], mail["sender/recipient"])
    return " ".join(cell for cell in cells if isinstance(cell, str)).lower()


def send_email(office: Office, /, recipient: Any = None, subject: Any = None, body: Any = None) -> Any:
    if not recipient or not subject or not body:
        return "Recipient, subject, or body not provided."
    if not is_address(recipient):
        return "Invalid recipient email address."
    sent = (str(office.mails.next_id()), "outbox", lowered(recipient), subject, NOW, body)
    office.mails = office.mails.appended(dict(zip(office.mails.columns, sent, strict=True)))
    return "Email sent successfully."


def delete_email(office: Office, /, email_id: Any = None) -> Any:
    if not email_id:
        return "Email ID not provided."
    if office.mails.find(email_id) is None:
        return "Email not found."
    office.mails = office.mails.without(email_id)
    return "Email deleted successfully."


def forward_email(office: Office, /, email_id: Any = None, recipient: Any = None) -> Any:
    if not email_id or not recipient:
        return "Email ID or recipient not provided."
    if not is_address(recipient):
        return "Invalid recipient email address."
    mail = office.mails.find(email_id)
    if mail is None:
        return "Email not found."
    return _sent(office, recipient, f"FW: {mail['subject']}", mail["body"], "Email forwarded successfully.")


def reply_email(office: Office, /, email_id: Any = None, body: Any = None) -> Any:
    if not email_id or not body:
        return "Email ID or body not provided."
    mail = office.mails.find(email_id)
    if mail is None:
        return "Email not found."
    return _sent(office, mail["sender/recipient"], f"RE: {mail['subject']}", body, "Email replied successfully.")


def _sent(office: Office, recipient: Any, subject: str, body: Any, success: str) -> str:
    result: str = send_email(office, recipient=recipient, subject=subject, body=body)
    return success if result == "Email sent successfully." else result

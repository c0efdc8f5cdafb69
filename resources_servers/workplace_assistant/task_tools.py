"""Tasks on the boards of a project."""

from typing import Any

from resources_servers.workplace_assistant.arguments import is_address, lowered, matching, padded, text
from resources_servers.workplace_assistant.tables import Office

LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
BAD_ASSIGNEE = "Assignee email not valid. Please choose from the list of team members."
BAD_LIST = f"List not valid. Please choose from: {', '.join(map(repr, LISTS))}."
BAD_BOARD = f"Board not valid. Please choose from: {', '.join(map(repr, BOARDS))}."


def get_task_information_by_id(office: Office, /, task_id: Any = None, field: Any = None) -> Any:
    if not task_id:
        return "Task ID not provided."
    if not field:
        return "Field not provided."
    task = office.tasks.find(task_id)
    if task is None:
        return "Task not found."
    return {field: task[field]} if text(field) in task else "Field not found."


def search_tasks(
    office: Office,
    /,
    task_name: Any = None,
    assigned_to_email: Any = None,
    list_name: Any = None,
    due_date: Any = None,
    board: Any = None,
) -> Any:
    patterns = {"task_name": task_name, "list_name": list_name, "due_date": due_date, "board": board}
    given = {column: pattern for column, pattern in patterns.items() if pattern}
    if not given and not assigned_to_email:
        return "No search parameters provided."
    found = list(office.tasks.rows)
    if assigned_to_email:
        if not is_address(assigned_to_email):
            return "Invalid email format for assigned_to_email."
        found = [task for task in found if task["assigned_to_email"].lower() == lowered(assigned_to_email)]
    for column, pattern in given.items():
        found = matching(found, pattern, column)
    return found


def create_task(
    office: Office,
    /,
    task_name: Any = None,
    assigned_to_email: Any = None,
    list_name: Any = None,
    due_date: Any = None,
    board: Any = None,
) -> Any:
    if not all((task_name, assigned_to_email, list_name, due_date, board)):
        return "Missing task details."
    given = {"assigned_to_email": lowered(assigned_to_email), "list_name": list_name, "board": board}
    for field, value in given.items():
        refusal = _refusal(office, field, value)
        if refusal:
            return refusal
    task_id = padded(office.tasks.next_id())
    created = {"task_id": task_id, "task_name": task_name, "due_date": due_date, **given}
    office.tasks = office.tasks.appended({column: created[column] for column in office.tasks.columns})
    return task_id


def delete_task(office: Office, /, task_id: Any = None) -> Any:
    if not task_id:
        return "Task ID not provided."
    if office.tasks.find(task_id) is None:
        return "Task not found."
    office.tasks = office.tasks.without(task_id)
    return "Task deleted successfully."


def update_task(office: Office, /, task_id: Any = None, field: Any = None, new_value: Any = None) -> Any:
    if not task_id or not field or not new_value:
        return "Task ID, field, or new value not provided."
    if field == "assigned_to_email":
        new_value = lowered(new_value)
    refusal = _refusal(office, text(field), new_value)
    if refusal:
        return refusal
    if office.tasks.find(task_id) is None:
        return "Task not found."
    if field not in office.tasks.columns:
        return "Field not valid."
    office.tasks = office.tasks.updated(task_id, field, new_value)
    return "Task updated successfully."


def _refusal(office: Office, field: str, value: Any) -> str | None:
    """Why a value cannot be in a column. Team members are those who have a task."""
    if field == "board" and value not in BOARDS:
        return BAD_BOARD
    if field == "list_name" and value not in LISTS:
        return BAD_LIST
    if field == "assigned_to_email" and all(task[field].lower() != value for task in office.tasks.rows):
        return BAD_ASSIGNEE
    return None

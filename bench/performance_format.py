"""Markdown and units of docs/performance.md."""


def table(header, rows):
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def indent(text):
    return "\n".join(f"    {line}" for line in text.splitlines())


def time(seconds):
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} us"

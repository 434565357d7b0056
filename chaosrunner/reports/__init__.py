"""What an analysis looks like to people and machines: terminal, Markdown, JSON, JUnit XML."""

from chaosrunner.reports.document import Cell, Item, Section, Table
from chaosrunner.reports.junit import junit
from chaosrunner.reports.markdown import markdown
from chaosrunner.reports.sections import headline, sections
from chaosrunner.reports.terminal import print_table, render

__all__ = ["Cell", "Item", "Section", "Table", "headline", "junit", "markdown", "print_table", "render", "sections"]

"""Fill quoted code and figures into the pages from their sources: `make docs`. Nothing is copied by hand.

<!-- fill: code examples/own_task.py -->      a file of the repository
<!-- fill: table results/pairs uniform -->    exact match from a study's scores, on one of its sets of problems
<!-- fill: table results/… uniform 10 20 -->  the same for some sizes
<!-- fill: table results/… uniform 10 RECIPE … -->  and for some recipes, in this order
<!-- fill: map results/abacus/addition 20 21-40 --> the mean and worst over all pairs of sizes up to 20; from 21 to 40;
                                         of several folders, each followed by its sizes
<!-- fill: kept results/abacus/splits 6 7-12 --> the mean of such a map after each number of loops
<!-- fill: loops results/…/stopping-….json --> exact match after T(n) − 1 to T(n) + 20 loops, and by each rule
<!-- fill: costs results -->               processor hours of the published training runs
<!-- fill: chosen lengthwise/weights -->      sizes that the recipes of shipped weights were chosen on
<!-- fill: shipped lengthwise/weights -->     scores of shipped weights, families included, and results of attacks
<!-- fill: claims docs/claims.toml -->        the sources' claims, with our measurements
<!-- fill: headline docs/claims.toml looped --> a paper's main results, ours, their costs and commands
<!-- fill: standings docs/claims.toml -->    which claims were reproduced, which contradicted, which are open
<!-- fill: tally docs/records.toml -->        the number of published records, and how ours compare
<!-- fill: records docs/records.toml parity --> the published records of a group, with ours
<!-- fill: rules results/… 9 uniform fewest-clues --> exact match and loops at one size by each stopping rule
<!-- fill: grid results/looped/parity … -->   exact match of every method on every task; one folder per task
<!-- fill: arms results/controls/parity … --> models with loop, window, both or neither; one folder per task
<!-- fill: matrix results/formal-matrix --> every cell of a matrix of architectures and tasks
<!-- fill: command results/looped/parity --> how a folder's figures were made, from results/README.md
"""

from __future__ import annotations

import json
import re
import sys

from fillers import claims, exact_match, records, run_tables, stopping
from fillers.results import ROOT

from lengthwise.api import catalog
from lengthwise.cli.records import RECORDS_FILE
from lengthwise.registry import sources

PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILL_MARK = re.compile(r"(<!-- fill: (\w+) ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


FILLERS = {
    "arms": exact_match.format_control_table,
    "chosen": run_tables.format_selection_sizes,
    "claims": claims.format_claims,
    "command": run_tables.format_command,
    "costs": run_tables.format_cost_table,
    "code": run_tables.format_code_block,
    "grid": exact_match.format_method_table,
    "headline": claims.format_main_results,
    "kept": exact_match.format_loop_count_table,
    "loops": stopping.format_loop_table,
    "map": exact_match.format_map_table,
    "matrix": exact_match.format_matrix,
    "records": records.format_record_list,
    "rules": exact_match.format_rule_table,
    "shipped": run_tables.format_shipped_scores,
    "standings": claims.format_standings,
    "table": exact_match.format_accuracy_table,
    "tally": records.format_record_tally,
}


def fill_page(text: str) -> str:
    """Return the text of a page with all its marked places filled anew."""
    return FILL_MARK.sub(lambda spot: spot[1] + FILLERS[spot[2]](*spot[3].split()) + spot[4], text)


def main() -> None:
    """Fill every page in place."""
    for page in PAGES:
        text = page.read_text()
        if (new := fill_page(text)) != text:
            page.write_text(new)
            print(f"filled {page.relative_to(ROOT)}", file=sys.stderr)
    sources.MEMBERS_FILE.write_text(format_family_members())
    RECORDS_FILE.write_text(records.format_records_json("docs/records.toml"))


def format_family_members() -> str:
    """Return the names of all families' recipes as JSON, so that `lengthwise list` need not build the recipes."""
    return json.dumps(catalog.list_recipe_family_members(), indent=1) + "\n"


if __name__ == "__main__":
    main()

"""What a case of `sets` has found: values by round, ratios by round, and what was aimed at."""

import statistics


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "rounds": values}


def shown(value):
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Found:
    """The rows of one case."""

    def __init__(self, name):
        self.name = name
        self.rows = []
        # What the generator has written of each run, for readers that want more.
        self.runs = []
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def run(self, server, round_number, result):
        """Keeps a run of the generator; one that is not valid is reported."""
        self.runs.append({"server": server, "round": round_number, **result})
        if not result["valid"]:
            self.note(f"round {round_number + 1}, {server}: not valid: {'; '.join(result['invalid'])}")
        return result

    def row(self, what, unit, values, ratio_to=(), least=None, most=None, base="pinion"):
        """Adds a row. `values`: for each server the values of its rounds. `ratio_to`: ratios of
        `base` to these servers, by round, each with what is aimed at, or none. `least`, `most`:
        what is aimed at for the values of `base` themselves (their median)."""
        values = {server: each for server, each in values.items() if each}
        row = {"what": what, "unit": unit, "values": {server: spread(each) for server, each in values.items()}, "ratios": {}, "aims": []}
        for server, aim in dict(ratio_to).items():
            # A value of nothing has no ratio; a case has as many rounds of each server, or it has
            # failed.
            pairs = [(own, other) for own, other in zip(values.get(base, []), values.get(server, [])) if other]
            if pairs:
                ratio = spread([own / other for own, other in pairs])
                row["ratios"][server] = ratio
                if aim is not None:
                    row["aims"].append({"aim": f"{aim:g} x {server}", "found": ratio["median"], "reached": ratio["median"] >= aim})
        if base in values:
            median = statistics.median(values[base])
            if least is not None:
                row["aims"].append({"aim": f"at least {least:g} {unit}".strip(), "found": median, "reached": median >= least})
            if most is not None:
                row["aims"].append({"aim": f"at most {most:g} {unit}".strip(), "found": median, "reached": median <= most})
        self.rows.append(row)

    def json(self):
        return {"case": self.name, "rows": self.rows, "notes": self.notes, "runs": self.runs}

    def text(self):
        lines = [f"{self.name}:"]
        for row in self.rows:
            values = "  ".join(
                f"{server} {shown(each['median'])} ({shown(each['least'])} to {shown(each['most'])})" for server, each in row["values"].items()
            )
            lines.append(f"  {row['what']}{', ' + row['unit'] if row['unit'] else ''}: {values}")
            for server, ratio in row["ratios"].items():
                lines.append(f"    ratio to {server}: {ratio['median']:.3g} ({ratio['least']:.3g} to {ratio['most']:.3g})")
            for aim in row["aims"]:
                lines.append(f"    aim {aim['aim']}: {'reached' if aim['reached'] else 'not reached'}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

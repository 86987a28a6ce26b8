package lab

// Edit replaces a text that stands exactly once in a file of the project.
type Edit struct {
	Path string `json:"path"`
	Old  string `json:"old"`
	New  string `json:"new"`
}

// Candidate is a patch that somebody, or some model, proposes. Some are right,
// some are parts of what is right, some need another one first, some are wrong.
type Candidate struct {
	Name  string
	Edits []Edit
	// Short says that it is also in the short form of the demo.
	Short bool
}

const (
	keywords = "sqlparse/keywords.py"
	grouping = "sqlparse/engine/grouping.py"
	splitter = "sqlparse/engine/statement_splitter.py"
	filters  = "sqlparse/filters/others.py"
	tokens   = "sqlparse/sql.py"
)

// afterNotNull is where the lexer's rules for sort orders belong.
const afterNotNull = `    (r'NOT\s+NULL\b', tokens.Keyword),
`

// Candidates are for release 0.5.0 of sqlparse. Release 0.5.1 fixed four bugs
// in it: comments took white space with them (issue 772), statements were
// split inside CASE in BEGIN (784), white space stayed in groups (782), and
// NULLS FIRST and LAST were not part of an order (532).
var Candidates = []Candidate{
	{"nulls-are-order", []Edit{{
		keywords, `(r'NULLS\s+(FIRST|LAST)\b', tokens.Keyword),`, `(r'NULLS\s+(FIRST|LAST)\b', tokens.Keyword.Order),`,
	}}, true},
	{"order-takes-nulls", []Edit{{
		keywords, afterNotNull, afterNotNull + `    (r'(ASC|DESC)(\s+NULLS\s+(FIRST|LAST))?\b', tokens.Keyword.Order),
`,
	}}, true},
	{"order-without-boundary", []Edit{{
		keywords, afterNotNull, afterNotNull + `    (r'(ASC|DESC)', tokens.Keyword.Order),
`,
	}}, false},
	{"split-remembers-case", []Edit{
		{splitter, `        self._is_create = False
`, `        self._is_create = False
        self._in_case = False
`},
		{splitter, `            self._begin_depth = max(0, self._begin_depth - 1)
            return -1
`, `            if self._in_case:
                self._in_case = False
            else:
                self._begin_depth = max(0, self._begin_depth - 1)
            return -1
`},
		{splitter, `                and self._is_create and self._begin_depth > 0):
            return 1
`, `                and self._is_create and self._begin_depth > 0):
            if unified == 'CASE':
                self._in_case = True
            return 1
`},
	}, true},
	{"split-end-is-flat", []Edit{{
		splitter, `            self._begin_depth = max(0, self._begin_depth - 1)
            return -1
`, `            self._begin_depth = max(0, self._begin_depth - 1)
            return 0
`,
	}}, true},
	{"strip-inside-group", []Edit{{
		filters, `            tlist.tokens.pop(-2)
        self._stripws_default(tlist)
`, `            tlist.tokens.pop(-2)
        last = tlist.tokens[-2]
        while last.is_group and last.tokens[-1].is_whitespace:
            last.tokens.pop(-1)
        self._stripws_default(tlist)
`,
	}}, true},
	{"strip-inside-anything", []Edit{{
		filters, `            tlist.tokens.pop(-2)
        self._stripws_default(tlist)
`, `            tlist.tokens.pop(-2)
        while tlist.tokens[-2].tokens[-1].is_whitespace:
            tlist.tokens[-2].tokens.pop(-1)
        self._stripws_default(tlist)
`,
	}}, false},
	{"token-knows-newline", []Edit{
		{tokens, `                 'is_group', 'is_whitespace')
`, `                 'is_group', 'is_whitespace', 'is_newline')
`},
		{tokens, `        self.is_whitespace = self.ttype in T.Whitespace
`, `        self.is_whitespace = self.ttype in T.Whitespace
        self.is_newline = self.ttype in T.Newline
`},
	}, true},
	{"comment-ends-with-line", []Edit{{ // needs token-knows-newline
		grouping, `imt(tk, t=T.Comment) or tk.is_whitespace, idx=tidx)`, `imt(tk, t=T.Comment) or tk.is_newline, idx=tidx)`,
	}}, true},
	{"comment-takes-no-space", []Edit{{
		grouping, `imt(tk, t=T.Comment) or tk.is_whitespace, idx=tidx)`, `imt(tk, t=T.Comment), idx=tidx)`,
	}}, true},
}

// deselected are tests of 0.5.1 for a feature that is new in it.
var deselected = []string{"tests/test_format.py::test_compact"}

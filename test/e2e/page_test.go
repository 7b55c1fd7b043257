// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/metrics/page"
	"github.com/egressd/egressd/policy"
)

// pageLoad sends through two exits, with what nobody else may read: until it is
// killed.
const pageLoad = `
import http.client, sys, threading, time
port = int(sys.argv[1])

def again(source, host, pause):
    def run():
        while True:
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
                c.request("GET", "/items?token=TOPSECRET", headers={
                    "Host": f"{host}:{port}", "Proxy-Authorization": "Basic VE9QU0VDUkVU", "Cookie": "id=TOPSECRET"})
                c.getresponse().read()
                c.close()
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(pause)
    threading.Thread(target=run).start()

for _ in range(4):
    again("127.0.0.71", "shop.example", 0.05)
again("127.0.0.72", "shop.example", 0.2)
for _ in range(2):
    again("127.0.0.72", "news.example", 0.3)
`

// states are what a stream has sent, by id.
type states struct {
	mu  sync.Mutex
	all map[string]page.State
}

// streamStates reads a stream until the test ends.
func streamStates(t *testing.T, base, query string) *states {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/stream?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	s := &states{all: map[string]page.State{}}
	var done sync.WaitGroup
	done.Go(func() {
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return // the end of the daemon, or of the test
			}
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				var one page.State
				if err := json.Unmarshal([]byte("{"+data), &one); err != nil {
					t.Errorf("stream: %v in %s", err, line)
					return
				}
				s.mu.Lock()
				s.all[fmt.Sprintf("%s-%d", one.Epoch, one.Seq)] = one
				s.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		done.Wait()
	})
	return s
}

func (s *states) get(id string) (one page.State, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok = s.all[id]
	return one, ok
}

// shown is what a page shows at one moment, as text.
type shown struct {
	State  string
	Totals []string
	Exits  []struct{ Name, Rate, Of, Facts, Label string }
	Lanes  []struct{ ID, Name, More, Sent, Budget, Use, Waiting, Limited, State string }
	Events []struct{ Kind, Lane, Detail string }
}

// readPage collects it all at once, so that it is of one state.
const readPage = `(() => {
  const t = (el) => el.textContent;
  return {
    state: document.body.dataset.state ?? "",
    totals: [...document.querySelectorAll(".totals dd")].map(t),
    exits: [...document.querySelectorAll("#exits > li")].map((li) => ({
      name: li.querySelector(".name").title, rate: t(li.querySelector(".big")), of: t(li.querySelector(".of")),
      facts: t(li.querySelector(".facts")), label: li.querySelector(".plot").getAttribute("aria-label")})),
    lanes: [...document.querySelectorAll("#lanes tbody tr")].map((tr) => ({
      id: tr.querySelector(".name").title, name: t(tr.querySelector(".destination")), more: t(tr.querySelector(".more-of")),
      sent: t(tr.children[1]), budget: t(tr.children[2]), use: t(tr.querySelector(".percent")), waiting: t(tr.children[4]),
      limited: t(tr.children[5]), state: t(tr.querySelector(".state-word"))})),
    events: [...document.querySelectorAll("#events tbody tr")].map((tr) => ({
      kind: t(tr.children[1]), lane: t(tr.children[2]), detail: t(tr.children[4])})),
  };
})()`

// isNumber looks whether text is want, as exactly as it is written.
func isNumber(text string, want float64) bool {
	text = strings.ReplaceAll(text, ",", "")
	got, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	digits := 0
	if i := strings.IndexByte(text, '.'); i >= 0 {
		digits = len(text) - i - 1
	}
	return math.Abs(got-want) <= 0.5001*math.Pow10(-digits)
}

// mustShow compares what a page shows with the state that it says to show.
func mustShow(t *testing.T, got *shown, want *page.State) {
	t.Helper()
	number := func(what, text string, want float64) {
		t.Helper()
		if !isNumber(text, want) {
			t.Errorf("%s: the page shows %q, the daemon says %v", what, text, want)
		}
	}
	totals := want.Totals
	for i, n := range []float64{totals.PerSecond, float64(totals.Exits), float64(totals.Lanes), float64(totals.Closed), float64(totals.Waiting)} {
		number(fmt.Sprintf("total %d", i), got.Totals[i], n)
	}
	if len(got.Exits) != len(want.Exits) || len(got.Lanes) != len(want.Lanes) || len(got.Events) != len(want.Events) {
		t.Fatalf("the page shows %d exits, %d lanes and %d events, the daemon says %d, %d and %d",
			len(got.Exits), len(got.Lanes), len(got.Events), len(want.Exits), len(want.Lanes), len(want.Events))
	}
	for i, e := range want.Exits {
		g := got.Exits[i]
		if g.Name != e.Exit {
			t.Errorf("exit %d: the page shows %q, the daemon says %q", i, g.Name, e.Exit)
		}
		number(e.Exit, g.Rate, e.PerSecond)
		if text, ok := strings.CutPrefix(g.Of, "/s of "); ok == (e.Budget == 0) || ok && !isNumber(strings.TrimSuffix(text, "/s"), e.Budget) {
			t.Errorf("%s: the page shows budget %q, the daemon says %v", e.Exit, g.Of, e.Budget)
		}
		most := 0.0
		for _, n := range e.Counts {
			most = max(most, n)
		}
		if part := fmt.Sprintf("at most %.0f", most); !strings.Contains(g.Label, part) {
			t.Errorf("%s: the plot says %q, want %q", e.Exit, g.Label, part)
		}
	}
	for i, l := range want.Lanes {
		g := got.Lanes[i]
		if g.ID != l.Lane || g.Name != l.Destination || g.More != l.Budget+" · "+l.Exit {
			t.Errorf("lane %d: the page shows %+v, the daemon says %+v", i, g, l)
			continue
		}
		number(l.Lane+" budget", strings.TrimSuffix(g.Budget, "/s"), l.Base)
		number(l.Lane+" waiting", g.Waiting, float64(l.Waiting))
		number(l.Lane+" limited", g.Limited, float64(l.Limited))
		if l.PerSecond != nil {
			number(l.Lane+" sent", g.Sent, *l.PerSecond)
			number(l.Lane+" use", strings.TrimSuffix(strings.TrimSuffix(g.Use, " over"), "%"), 100**l.PerSecond/l.Base)
		} else if g.Sent != "…" {
			t.Errorf("%s: the page shows %s, the daemon does not know", l.Lane, g.Sent)
		}
		if l.Open != (g.State == "open" || strings.HasPrefix(g.State, "slowed") || g.State == "one probe") {
			t.Errorf("%s: the page shows %q, the daemon says open: %v", l.Lane, g.State, l.Open)
		}
	}
	for i, e := range want.Events {
		if g := got.Events[i]; g.Kind != strings.ReplaceAll(e.Kind, "_", " ") || g.Lane != e.Lane || g.Detail != e.Detail {
			t.Errorf("event %d: the page shows %+v, the daemon says %+v", i, g, e)
		}
	}
}

// pageBudgets are the policy of TestPage; %[1]d is the port of its origin.
const pageBudgets = `  - {name: shop, match: {hosts: [shop.example], ports: [%[1]d]}, rate: 5/s, burst: 1}
  - {name: news, match: {hosts: [news.example], ports: [%[1]d]}, rate: 2/s, burst: 2}
  - {name: rest, match: {hosts: [localhost], ports: [%[1]d]}, rate: 3/s}`

// TestPage has a real browser show a daemon under a real load.
func TestPage(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := prepareDaemon(t, scope)
	d.extra = "exits:\n  - {name: E-71, source: 127.0.0.71}\n  - {name: E-72, source: 127.0.0.72}\n"
	d.write(t, fmt.Sprintf(pageBudgets, o.port))
	// The page has to find the daemon again, so that needs a port of its own.
	listen := freeAddr(t)
	mustWrite(t, d.config, strings.Replace(mustRead(t, d.config), "127.0.0.1:0", listen, 1))
	d.start(t)
	base := "http://" + listen
	start(t, how{in: scope}, "python3", "-c", pageLoad, strconv.Itoa(o.port))
	start(t, how{in: scope}, workers["go"]("localhost", o.port)...)

	b := newBrowser(t)
	p := b.open(t, "light-desktop", base+"/", sight{width: 1280, height: 900, scheme: "light"})
	p.until(t, `document.querySelector("#connection").dataset.state === "live" && document.querySelectorAll("#lanes tbody tr").length === 4`)

	t.Run("values", func(t *testing.T) {
		api := streamStates(t, base, "sort=activity&order=desc&lanes=100&exits=12")
		// Three states, the first of which has rates already.
		p.until(t, `[...document.querySelectorAll("#lanes td:nth-child(2)")].every((td) => td.textContent !== "…")`)
		compared := map[string]bool{}
		waitFor(t, 60*time.Second, "three states that the page shows and the API sent", func() bool {
			var got shown
			p.eval(t, readPage, &got)
			if want, ok := api.get(got.State); ok && !compared[got.State] {
				mustShow(t, &got, &want)
				compared[got.State] = true
			}
			return len(compared) == 3 || t.Failed()
		})
	})
	t.Run("plots", func(t *testing.T) { mustPlot(t, p, 3) })
	t.Run("keys", func(t *testing.T) { byKeyboard(t, p) })
	t.Run("theme", func(t *testing.T) { changesTheme(t, p) })
	t.Run("cooldown", func(t *testing.T) {
		o.limitNext(3 * time.Second)
		p.until(t, `/closed \d/.test(document.querySelector("#lanes tr.closed .state-word")?.textContent)`)
		closed := p.text(t, `document.querySelector("#lanes tr.closed .name").title`)
		p.shot(t, false)
		// It counts down, between two states too.
		p.eval(t, `new Promise((done) => { globalThis.seen = [];
			const look = () => { const el = document.querySelector("#lanes tr.closed .state-word");
				if (el) { seen.push(el.textContent); setTimeout(look, 50); } else done(); };
			look(); })`, nil)
		var seen []string
		p.eval(t, "seen", &seen)
		seen = slices.Compact(seen)
		last := math.Inf(1)
		for _, text := range seen {
			left := 0.0 // "opening"
			if _, err := fmt.Sscanf(text, "closed %fs", &left); err != nil && text != "opening" {
				t.Fatalf("the countdown says %q", text)
			}
			if left > last+1.5 { // another limit might lengthen it, this origin gives none
				t.Errorf("the countdown goes from %g to %g", last, left)
			}
			last = left
		}
		if len(seen) < 5 {
			t.Errorf("the countdown says %v, want more steps than there are states", seen)
		}
		said := fmt.Sprintf(`document.querySelector("#said").textContent.includes(%q)`, closed+" closed for")
		p.until(t, said)
		p.until(t, fmt.Sprintf(`document.querySelector("#said").textContent.includes(%q)`, closed+" open again"))
	})
	phone := b.open(t, "dark-phone", base+"/", sight{width: 360, height: 780, scheme: "dark", still: true})
	t.Run("phone", func(t *testing.T) {
		phone.until(t, `document.querySelectorAll("#lanes tbody tr").length === 4`)
		if got := phone.text(t, "document.documentElement.scrollWidth"); got != "360" {
			t.Errorf("got a page %s wide on a screen of 360", got)
		}
		var cut []string
		phone.eval(t, `[...document.querySelectorAll("main *, header *")].filter((el) => !el.closest("thead, .unseen, .plot") &&
			el.getClientRects().length > 0 && el.getBoundingClientRect().right > 361).map((el) => el.outerHTML.slice(0, 80))`, &cut)
		if len(cut) > 0 {
			t.Errorf("beyond the screen's edge: %q", cut)
		}
		// There are no headings to sort by, so there is a list.
		phone.tabTo(t, `el.id === "sort"`)
		phone.press(t, "ArrowDown")
		phone.until(t, sortedByID(false))
		phone.shot(t, true)
	})
	t.Run("accessible", func(t *testing.T) {
		for _, tab := range []*tab{p, phone} {
			if got := tab.violations(t); len(got) > 0 {
				t.Errorf("%s: axe found %q", tab.name, got)
			}
		}
	})
	t.Run("secrets", func(t *testing.T) {
		text := mustGet(t, base+"/api/v1/state?lanes=500&events=200&exits=48", "") + p.text(t, "document.documentElement.outerHTML")
		for _, secret := range []string{"TOPSECRET", "VE9QU0VDUkVU", "/items", "token"} {
			if strings.Contains(text, secret) {
				t.Errorf("the page tells %s", secret)
			}
		}
	})
	t.Run("other names", func(t *testing.T) {
		for path, want := range map[string]int{"/": 421, "/api/v1/state": 421, "/metrics": 200} {
			if got := statusFor(t, base+path, "evil.example"); got != want {
				t.Errorf("%s for host evil.example: got %d, want %d", path, got, want)
			}
		}
	})
	for _, tab := range []*tab{p, phone} {
		if got := tab.problems(t); len(got) > 0 {
			t.Errorf("%s: %q", tab.name, got)
		}
	}
	t.Run("restart", func(t *testing.T) { overRestart(t, p, d) })
}

// sortedByID says, in JavaScript, that the lanes stand in the order of their ids.
func sortedByID(turned bool) string {
	sign := "<"
	if turned {
		sign = ">"
	}
	return `((ids) => ids.length > 1 && ids.every((id, i) => i === 0 || ids[i - 1] ` + sign + ` id))(` +
		`[...document.querySelectorAll("#lanes tbody td.name")].map((td) => td.title))`
}

// pointsOf is a function for a picture's points. It reads a copy, since a picture
// that is read itself is drawn in another way from then on.
const pointsOf = `const pointsOf = (c) => {
	const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", { willReadFrequently: true });
	copy.drawImage(c, 0, 0);
	return copy.getImageData(0, 0, c.width, c.height).data;
};
`

// mustPlot looks whether all plots have drawn bars and a line.
func mustPlot(t *testing.T, p *tab, exits int) {
	t.Helper()
	var colours []struct{ Bar, Line int }
	p.eval(t, pointsOf+`[...document.querySelectorAll("#exits canvas")].map((c) => {
		const style = getComputedStyle(document.documentElement);
		const rgb = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
		const data = pointsOf(c);
		const count = ([r, g, b]) => { let n = 0;
			for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i+1] === g && data[i+2] === b && data[i+3] === 255) n++;
			return n; };
		return { bar: count(rgb("--bar")), line: count(rgb("--line")) };
	})`, &colours)
	if len(colours) != exits {
		t.Fatalf("got %d plots, want %d", len(colours), exits)
	}
	for i, c := range colours {
		if c.Bar < 20 || c.Line < 100 {
			t.Errorf("plot %d: got %d points of bars and %d of the budget's line", i, c.Bar, c.Line)
		}
	}
}

// byKeyboard searches and sorts without a mouse.
func byKeyboard(t *testing.T, p *tab) {
	p.press(t, "/")
	if got := p.text(t, "document.activeElement.id"); got != "search" {
		t.Fatalf("after / the focus is on %q", got)
	}
	p.write(t, "NEWS")
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 1 &&
		document.querySelector("#lanes tbody td.name").title === "news/news.example/E-72" &&
		document.querySelectorAll("#exits > li").length === 1`)
	p.write(t, " nothing")
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 0 && !document.querySelector("#lanes-empty").hidden`)
	p.press(t, "Control+a", "Delete")
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 4`)

	p.tabTo(t, `el.dataset.sort === "lane"`)
	var outline string
	p.eval(t, `getComputedStyle(document.activeElement).outlineStyle`, &outline)
	if outline == "none" {
		t.Error("what has the focus does not show it")
	}
	heading := `document.querySelector("[data-sort=lane]").parentElement`
	p.press(t, "Enter")
	p.until(t, heading+`.ariaSort === "ascending" && `+sortedByID(false))
	p.press(t, "Enter")
	p.until(t, heading+`.ariaSort === "descending" && `+sortedByID(true))
	if got := p.text(t, `document.querySelectorAll("#lanes th[aria-sort]").length + document.activeElement.dataset.sort`); got != "1lane" {
		t.Errorf("got %s, want one order, and the focus where it was", got)
	}
	p.tabTo(t, `el.dataset.sort === "sent"`)
	ordered := p.text(t, "document.body.dataset.state")
	p.press(t, "Space")
	p.until(t, `document.querySelector("[data-sort=sent]").parentElement.ariaSort === "descending" && `+heading+`.ariaSort === null`)
	// What was asked for is shown before the page stands still.
	p.until(t, fmt.Sprintf(`document.body.dataset.state !== %q && document.body.dataset.asked === undefined`, ordered))

	// Who pauses reads what stands still.
	p.eval(t, `document.querySelector("#pause").focus()`, nil)
	p.press(t, "Enter")
	p.until(t, `document.querySelector("#connection").textContent.startsWith("paused at")`)
	before := p.text(t, "document.body.dataset.state")
	p.eval(t, `new Promise((done) => setTimeout(done, 2200))`, nil)
	if after := p.text(t, "document.body.dataset.state"); after != before {
		t.Errorf("paused at state %s, the page goes on to %s", before, after)
	}
	p.press(t, "Enter")
	p.until(t, fmt.Sprintf(`document.body.dataset.state !== %q && document.querySelector("#connection").textContent === "live"`, before))
}

// changesTheme goes through the themes, of which the choice is remembered.
func changesTheme(t *testing.T, p *tab) {
	paper := func() string { return p.text(t, "getComputedStyle(document.body).backgroundColor") }
	auto := paper()
	p.eval(t, `document.querySelector("#theme").focus()`, nil)
	p.press(t, "Enter", "Enter")
	p.until(t, `document.querySelector("#theme").textContent === "Theme: dark"`)
	dark := paper()
	if dark == auto {
		t.Errorf("dark and light both have the ground %s", dark)
	}
	mustPlot(t, p, 3)
	p.b.do(t, "reload", nil, "page", p.name)
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 4`)
	if got := paper(); got != dark {
		t.Errorf("after a reload the ground is %s, want %s", got, dark)
	}
	p.eval(t, `document.querySelector("#theme").focus()`, nil)
	p.press(t, "Enter")
	p.until(t, `document.querySelector("#theme").textContent === "Theme: auto"`)
	if got := paper(); got != auto {
		t.Errorf("the ground is %s, want %s again", got, auto)
	}
}

// barsOfPlots is how many seconds each plot has bars of: the columns of points
// in their colour, of which a second has four, one of them free.
const barsOfPlots = pointsOf + `[...document.querySelectorAll("#exits canvas")].map((c) => {
	const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue("--bar").trim().match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
	const data = pointsOf(c);
	const columns = new Set();
	for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i+1] === g && data[i+2] === b) columns.add((i / 4) % c.width);
	return columns.size / 3;
})`

// overRestart ends the daemon under the page, and starts another.
func overRestart(t *testing.T, p *tab, d *daemon) {
	before := p.text(t, "document.body.dataset.state")
	var drawn float64
	p.eval(t, barsOfPlots+".reduce((a, b) => Math.max(a, b))", &drawn)
	d.stop(t)
	p.until(t, `/^disconnected since \d\d:\d\d:\d\d$/.test(document.querySelector("#connection").textContent)`)
	d.start(t)
	p.until(t, `document.querySelector("#connection").textContent === "live" && document.querySelectorAll("#exits > li").length > 0`)
	after := p.text(t, "document.body.dataset.state")
	old, _, _ := strings.Cut(before, "-")
	if now, _, _ := strings.Cut(after, "-"); now == old {
		t.Errorf("after a restart the page shows state %s, and %s before", after, before)
	}
	p.until(t, `document.querySelector("#events-note").textContent.startsWith("another daemon since")`)
	// Whatever is drawn is of the new daemon: no more bars than seconds it has
	// lived. Before, there were many more.
	var rows int
	p.eval(t, `document.querySelectorAll("#events tbody tr").length`, &rows)
	base := strings.TrimSuffix(p.text(t, "location.href"), "/")
	var s page.State
	if err := json.Unmarshal([]byte(mustGet(t, base+"/api/v1/state", "")), &s); err != nil {
		t.Fatal(err)
	}
	if rows > len(s.Events) {
		t.Errorf("the page shows %d events, the new daemon knows of %d", rows, len(s.Events))
	}
	var bars []float64
	p.eval(t, barsOfPlots, &bars)
	most := time.Since(s.Daemon.Started).Seconds() + 1
	for _, n := range bars {
		if n > most || n > drawn-2 {
			t.Errorf("got a plot with bars of %v seconds, of a daemon that started %v ago; before the restart there were %v", bars, time.Since(s.Daemon.Started), drawn)
		}
	}
	if len(bars) == 0 {
		t.Error("got no plot after the restart")
	}
	// Nothing but the daemon's absence was wrong.
	for _, problem := range p.problems(t) {
		if !strings.Contains(problem, "net::ERR_") || !strings.Contains(problem, "/api/v1/stream") {
			t.Error(problem)
		}
	}
}

// freeAddr is an address of the loopback at which nobody listens.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// mustGet reads what is answered under a host's name, or the address's own.
func mustGet(t testing.TB, url, host string) string {
	t.Helper()
	status, body := ask(t, url, host)
	if status != http.StatusOK {
		t.Fatalf("%s: got %d\n%s", url, status, body)
	}
	return body
}

func statusFor(t testing.TB, url, host string) int {
	t.Helper()
	status, _ := ask(t, url, host)
	return status
}

func ask(t testing.TB, url, host string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body strings.Builder
	if _, err := bufio.NewReader(resp.Body).WriteTo(&body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body.String()
}

// thousands is a daemon with ten thousand lanes whose names were chosen by somebody
// who means harm.
type thousands struct{ lanes []page.Lane }

const hostile = `<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>`

func newThousands() *thousands {
	c := new(thousands)
	for i := range 10_000 {
		name := fmt.Sprintf("host-%05d.example", i)
		if i%1000 == 0 {
			name += hostile
		}
		c.lanes = append(c.lanes, page.Lane{
			ID: "shop/" + name + "/E-1", Budget: "shop", Destination: name, Exit: "E-1", CountedBy: "E-1" + hostile,
			Per: policy.PerDestination | policy.PerExit, Mode: "enforce", Rate: 1, Base: 1, Burst: 1,
		})
	}
	return c
}

func (c *thousands) Status() page.Status {
	return page.Status{Version: "v1" + hostile, Started: time.Unix(1, 0), Attached: true}
}
func (c *thousands) Lanes() []page.Lane { return c.lanes }
func (c *thousands) Exits(int) ([]page.Exit, time.Time) {
	return []page.Exit{{Name: "E-1" + hostile, Seconds: []float64{1, 2, 3}}}, time.Now()
}
func (c *thousands) Events(int) []page.Event {
	return []page.Event{{At: time.Now(), Mono: 1, Kind: "cooldown", Lane: c.lanes[0].ID, Detail: hostile}}
}

// TestPageOfThousands shows more than anybody can read, and names that are
// markup: the page stays small, finds what is looked for, and shows names as
// they are.
func TestPageOfThousands(t *testing.T) {
	t.Parallel()
	needRoot(t)
	handler := page.New(page.Config{Source: newThousands()})
	server := httptest.NewServer(handler)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := handler.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		server.Close()
	})
	b := newBrowser(t)
	p := b.open(t, "thousands", server.URL+"/", sight{width: 1000, height: 700, scheme: "light"})
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 100`)
	if got := p.text(t, `document.querySelector("#lanes-note").textContent`); got != "the first 100; 10,000 in all" {
		t.Errorf("got %q", got)
	}
	p.press(t, "/")
	p.write(t, "host-09999")
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 1 && document.querySelector(".destination").textContent === "host-09999.example"`)
	p.press(t, "Control+a")
	p.write(t, "onerror")
	p.until(t, `document.querySelectorAll("#lanes tbody tr").length === 10`)
	for what, want := range map[string]string{
		`document.querySelector(".destination").textContent`:              "host-00000.example" + hostile,
		`document.querySelector("#exits .name").textContent`:              "E-1" + hostile,
		`document.querySelector("#version").textContent`:                  "v1" + hostile,
		`document.querySelector("#events tbody .detail").textContent`:     hostile,
		`document.querySelectorAll("body img, main script").length`:       "0",
		`document.querySelectorAll("*").length < 1500 && document.title`:  "egressd",
		`getComputedStyle(document.querySelector("#exits li")).direction`: "ltr",
	} {
		if got := p.text(t, what); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	p.shot(t, false)
	if got := p.problems(t); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

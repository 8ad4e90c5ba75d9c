// Runs RocketMQ's Go client. Arguments: NAMESERVER and a JSON plan; the output is JSON lines. A plan that goes on
// ("consume", "transact", "poll", "stream", "reply") prints {"ready": true}, and runs until its standard input ends.
// The last line of every plan is {"done": true}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// plan is the second argument of the program.
type plan struct {
	Do    string
	Topic string
	Group string
	// User and Secret sign every request, if there are any.
	User   string
	Secret string

	// Sends are the messages of "send", "transact" and "request".
	Sends []planned

	// Expression is a subscription by tags, or by SQL92 if SQL is set.
	Expression string
	SQL        bool
	Orderly    bool
	Broadcast  bool
	// Failures is how often the consumption of a body fails.
	Failures map[string]int32
	// ReconsumeMax is how many failures a message has before it becomes a dead letter; 0 means 16.
	ReconsumeMax int32

	// Broker is an address, for "admin".
	Broker string
	// PauseMS is the pause between two messages of "stream".
	PauseMS int
}

// planned is one message to be sent.
type planned struct {
	// How is sync, async, oneway or batch.
	How        string
	Body       string
	Bodies     []string
	Tags       string
	Keys       []string
	Properties map[string]string
	// Sharding is the key by which a queue is chosen, if there is one.
	Sharding string
	// Delay is a level of delay, DeliverMS the milliseconds until the delivery.
	Delay     int
	DeliverMS int64
	// First and Then are a transaction's states (commit, rollback, unknown), after the half message and at a check.
	First string
	Then  string
}

type line map[string]any

var (
	telling    sync.Mutex
	nameserver primitive.NsResolver
	plans      = map[string]func(plan) error{
		"send":     send,
		"transact": transact,
		"stream":   stream,
		"request":  request,
		"reply":    reply,
		"consume":  consume,
		"pull":     pull,
		"poll":     poll,
		"admin":    administer,
	}
)

// tell prints one JSON line.
func tell(told line) {
	data, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	telling.Lock()
	defer telling.Unlock()
	fmt.Printf("%s\n", data)
}

// runUntilEnd says that the plan is ready and returns when the standard input ends.
func runUntilEnd() {
	tell(line{"ready": true})
	_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
}

func (p plan) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: p.User, SecretKey: p.Secret}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: client NAMESERVER PLAN")
		os.Exit(2)
	}
	rlog.SetLogLevel("warn")
	nameserver = primitive.NewPassthroughResolver([]string{os.Args[1]})
	var p plan
	if err := json.Unmarshal([]byte(os.Args[2]), &p); err != nil {
		fmt.Fprintln(os.Stderr, "plan:", err)
		os.Exit(2)
	}
	run, known := plans[p.Do]
	if !known {
		fmt.Fprintln(os.Stderr, "no such plan:", p.Do)
		os.Exit(2)
	}
	if err := run(p); err != nil {
		tell(line{"failed": err.Error()})
		os.Exit(1)
	}
	tell(line{"done": true})
}

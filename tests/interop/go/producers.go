package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	sendTimeout    = 60 * time.Second
	requestTimeout = 10 * time.Second
)

// byShardingKey chooses the queue by the sharding key of a message, and in turn for messages without one.
type byShardingKey struct {
	byKey  producer.QueueSelector
	inTurn producer.QueueSelector
}

func (s byShardingKey) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.GetShardingKey() != "" {
		return s.byKey.Select(m, queues, last)
	}
	return s.inTurn.Select(m, queues, last)
}

func producerOptions(p plan) []producer.Option {
	return []producer.Option{
		producer.WithNsResolver(nameserver),
		producer.WithGroupName(p.Group),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithCredentials(p.credentials()),
		producer.WithQueueSelector(byShardingKey{producer.NewHashQueueSelector(), producer.NewRoundRobinQueueSelector()}),
	}
}

// message is that of one planned send.
func message(topic string, s planned, body string) *primitive.Message {
	m := primitive.NewMessage(topic, []byte(body))
	if s.Tags != "" {
		m.WithTag(s.Tags)
	}
	if len(s.Keys) > 0 {
		m.WithKeys(s.Keys)
	}
	if s.Sharding != "" {
		m.WithShardingKey(s.Sharding)
	}
	if s.Delay > 0 {
		m.WithDelayTimeLevel(s.Delay)
	}
	if s.DeliverMS > 0 {
		m.WithDelayTimestamp(time.Now().Add(time.Duration(s.DeliverMS) * time.Millisecond))
	}
	for key, value := range s.Properties {
		m.WithProperty(key, value)
	}
	return m
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func outcome(body string, result *primitive.SendResult, err error) line {
	if err != nil {
		return line{"body": body, "error": err.Error()}
	}
	return line{
		"body": body, "status": statuses[result.Status], "msg_id": result.MsgID, "offset_msg_id": result.OffsetMsgID,
		"queue_id": result.MessageQueue.QueueId, "offset": result.QueueOffset,
	}
}

// send sends the planned messages and prints what became of each.
func send(p plan) error {
	client, err := rocketmq.NewProducer(producerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	ctx := context.Background()
	var pending sync.WaitGroup
	for _, s := range p.Sends {
		switch s.How {
		case "sync":
			result, err := client.SendSync(ctx, message(p.Topic, s, s.Body))
			tell(outcome(s.Body, result, err))
		case "async":
			pending.Add(1)
			err := client.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				tell(outcome(s.Body, result, err))
				pending.Done()
			}, message(p.Topic, s, s.Body))
			if err != nil {
				tell(outcome(s.Body, nil, err))
				pending.Done()
			}
		case "oneway":
			if err := client.SendOneWay(ctx, message(p.Topic, s, s.Body)); err != nil {
				tell(outcome(s.Body, nil, err))
			}
		case "batch":
			var batch []*primitive.Message
			for _, body := range s.Bodies {
				batch = append(batch, message(p.Topic, s, body))
			}
			result, err := client.SendSync(ctx, batch...)
			tell(outcome(fmt.Sprintf("batch of %d", len(batch)), result, err))
		default:
			return fmt.Errorf("no such way to send: %s", s.How)
		}
	}
	pending.Wait()
	return client.Shutdown()
}

// decisions decides about transactions as planned, and prints what it was asked.
type decisions struct {
	planned map[string]planned
}

var states = map[string]primitive.LocalTransactionState{
	"commit":   primitive.CommitMessageState,
	"rollback": primitive.RollbackMessageState,
	"unknown":  primitive.UnkonwnState,
}

func (d decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return states[d.planned[string(m.Body)].First]
}

func (d decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	tell(line{"checked": string(m.Body), "transaction_id": m.TransactionId})
	return states[d.planned[string(m.Body)].Then]
}

// transact sends messages in transactions, and answers checks until the input ends.
func transact(p plan) error {
	all := decisions{map[string]planned{}}
	for _, s := range p.Sends {
		all.planned[s.Body] = s
	}
	client, err := rocketmq.NewTransactionProducer(all, producerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	for _, s := range p.Sends {
		result, err := client.SendMessageInTransaction(context.Background(), message(p.Topic, s, s.Body))
		if err != nil {
			tell(outcome(s.Body, nil, err))
			continue
		}
		tell(outcome(s.Body, result.SendResult, nil))
	}
	runUntilEnd()
	return client.Shutdown()
}

// stream sends numbers, one after another, until the input ends.
func stream(p plan) error {
	options := append(producerOptions(p), producer.WithSendMsgTimeout(3*time.Second))
	client, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		close(ended)
	}()
	for number := 0; ; number++ {
		select {
		case <-ended:
			return client.Shutdown()
		case <-time.After(time.Duration(p.PauseMS) * time.Millisecond):
		}
		body := fmt.Sprint(number)
		result, err := client.SendSync(context.Background(), primitive.NewMessage(p.Topic, []byte(body)))
		tell(outcome(body, result, err))
	}
}

// request sends messages and waits for the reply of a consumer to each.
func request(p plan) error {
	client, err := rocketmq.NewProducer(producerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	for _, s := range p.Sends {
		answer, err := client.Request(context.Background(), requestTimeout, message(p.Topic, s, s.Body))
		if err != nil {
			tell(line{"body": s.Body, "error": err.Error()})
			continue
		}
		tell(line{"body": s.Body, "reply": string(answer.Body)})
	}
	return client.Shutdown()
}

// administer creates a topic, lists what there is, and deletes the topic.
func administer(p plan) error {
	client, err := admin.NewAdmin(admin.WithResolver(nameserver), admin.WithCredentials(p.credentials()))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	created := admin.WithTopicCreate(p.Topic)
	if err = client.CreateTopic(ctx, created, admin.WithBrokerAddrCreate(p.Broker), admin.WithReadQueueNums(3), admin.WithWriteQueueNums(2)); err != nil {
		return err
	}
	queues, err := client.FetchPublishMessageQueues(ctx, p.Topic)
	if err != nil {
		return err
	}
	topics, err := client.FetchAllTopicList(ctx)
	if err != nil {
		return err
	}
	groups, err := client.GetAllSubscriptionGroup(ctx, p.Broker, sendTimeout)
	if err != nil {
		return err
	}
	var names []string
	for name := range groups.SubscriptionGroupTable {
		names = append(names, name)
	}
	if err = client.DeleteTopic(ctx, admin.WithTopicDelete(p.Topic), admin.WithBrokerAddrDelete(p.Broker)); err != nil {
		return err
	}
	left, err := client.FetchAllTopicList(ctx)
	if err != nil {
		return err
	}
	tell(line{"queues": len(queues), "topics": topics.TopicList, "groups": names, "left": left.TopicList})
	return nil
}
